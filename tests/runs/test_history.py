"""Records of a run read back, and the prompts that earned least at first."""

import math
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.runs.history import Run, early_rewards, hardest_prompts, read_run, replay_start_step
from tests.data_prep.raw_files import put_lines
from tests.report.made import groups_of, run_of


def line(step: int, **data: float) -> dict[str, Any]:
    return {"step": step, "data": data}


def group(index: int, *rewards: float) -> dict[str, Any]:
    return {"index": index, "type": "forget", "mode": "qa", "subject": "Ada", "rewards": list(rewards)}


def recorded(folder: Path, metrics: list[dict[str, Any]], **others: list[dict[str, Any]]) -> Run:
    for name, lines in {"metrics": metrics, **others}.items():
        put_lines(folder / "records" / f"{name}.jsonl", lines)
    return read_run("a", folder)


def test_series_have_gaps_and_a_step_counts_as_recorded_last(tmp_path: Path) -> None:
    run = recorded(tmp_path, [line(1, x=0.5), line(2, y=2.0), line(3, x=9.0), line(3, x=0.25), line(4)])
    assert run.steps == [1, 2, 3, 4]
    first, gap, last, _ = run.logged(["x"])["x"]
    assert (first, last, math.isnan(gap)) == (0.5, 0.25, True)
    assert run.series("x").to_dict() == {1: 0.5, 3: 0.25}
    assert len(run.series("never logged")) == len(run.groups) == 0


def test_prompts_are_followed_over_steps_by_mean_reward(tmp_path: Path) -> None:
    prompts = [
        {"step": 1, "prompts": [group(7, 0, 1, 1, 0), group(9, 1, 1, 1, 1)]},
        {"step": 3, "prompts": [group(7, 1, 1, 1, 0)]},
    ]
    run = recorded(tmp_path, [line(1), line(3)], prompts=prompts)
    expected = groups_of({(7, "forget"): {1: 0.5, 3: 0.75}, (9, "forget"): {1: 1.0}})
    assert run.groups.equals(expected.reset_index(drop=True))


def test_a_line_cut_short_by_a_kill_is_left_out_and_a_bad_one_elsewhere_is_named(tmp_path: Path) -> None:
    recorded(tmp_path, [line(1, x=1.0)])
    file = tmp_path / "records" / "metrics.jsonl"
    whole = file.read_text()
    file.write_text(whole + '{"step": 2, "da')
    assert read_run("a", tmp_path).steps == [1]
    for bad in ('{"step": 2, "da', '{"step": 2}', "[]", '{"step": "x", "data": {}}'):
        file.write_text(f"{whole}{bad}\n{whole}")
        with pytest.raises(ValueError, match=r"metrics\.jsonl: line 2 is not a record of a training step"):
            read_run("a", tmp_path)


@pytest.mark.parametrize(
    ("updates", "start"), [([0, 0, 1, 0, 1], 3), ([1, 1], 1), ([0, 0], None), ([], None)]
)
def test_replay_starts_at_the_first_update(updates: list[float], start: int | None) -> None:
    metrics = [{"replay/updates": count} for count in updates] or [{"replay/hard_share": 1.0}]
    assert replay_start_step(run_of("run", metrics)) == start


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [((0.25,), 0.25), ((0.5, 1.0, 1.0), 0.5), ((0.5, 0.0, 1.0, 1.0), 0.25), ((0.0, 0.5, 1, 1, 1, 1, 1), 0.5)],
)
def test_early_reward_is_the_first_third_rounded_up(rewards: tuple[float, ...], expected: float) -> None:
    groups = groups_of({(1, "forget"): dict(enumerate(rewards))})
    assert early_rewards(groups).to_dict() == {1: pytest.approx(expected)}


def test_runs_share_their_hardest_prompts() -> None:
    """Means 0.5, 0.375, 0.25; prompt 4 is unknown to the second run."""
    rewards: list[dict[int, float]] = [{1: 0.0, 2: 0.75, 3: 0.25, 4: 0.0}, {1: 1.0, 2: 0.0, 3: 0.25}, {}]
    first, second, none = (
        groups_of({(index, "forget"): {1: reward} for index, reward in one.items()}) for one in rewards
    )
    assert hardest_prompts([first, second], 3) == [3, 2, 1]
    assert hardest_prompts([first, none], 3) == []
