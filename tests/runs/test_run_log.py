"""What a run keeps beside its checkpoints, and how it is read again."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from recipe.rerule.runs import run_log
from recipe.rerule.runs.history import (
    Run,
    early_rewards,
    hardest_prompts,
    read_metrics,
    read_run,
    replay_start_step,
)
from tests.data_prep.raw_files import put_lines
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level
from tests.replay.groups import make_group
from tests.report.made import groups_of, run_of


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DictConfig:
    """Of a run in the folder `tmp_path`; verl's variable is as it was after the test."""
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "")
    return OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}})


def test_a_start_keeps_the_configuration_and_a_resumed_one_the_earlier_metrics(
    config: DictConfig, tmp_path: Path
) -> None:
    folder = tmp_path / "records"
    names = ["metrics.jsonl", "metrics.1.jsonl", "metrics.2.jsonl"]
    folder.mkdir()
    (folder / "metrics.old.jsonl").write_text("metrics.old.jsonl")  # a user's own
    for name in names:
        run_log.start(config)
        assert os.environ["VERL_FILE_LOGGER_PATH"] == str(folder / name)
        (folder / name).write_text(name)
    assert [path.name for path in run_log.metrics_files(tmp_path)] == names
    assert sorted(path.read_text() for path in folder.iterdir()) == sorted([*names, "metrics.old.jsonl"])
    assert OmegaConf.load(tmp_path / "config.yaml") == config


def test_a_key_among_the_variables_of_workers_is_not_kept(config: DictConfig, tmp_path: Path) -> None:
    variables = {"WANDB_API_KEY": "of-my-own", "PORT": 1}
    given = OmegaConf.merge(config, {"ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": variables}}}})
    OmegaConf.set_struct(given, True)
    run_log.start(given)
    kept = OmegaConf.load(tmp_path / "config.yaml")
    assert kept.trainer == given.trainer
    assert kept.ray_kwargs.ray_init.runtime_env.env_vars == dict.fromkeys(variables, "(not kept)")
    assert given.ray_kwargs.ray_init.runtime_env.env_vars == variables
    assert "of-my-own" not in (tmp_path / "config.yaml").read_text()


def test_validation_rewards_are_by_prompt_and_are_read_again(tmp_path: Path) -> None:
    """Two responses to prompt 4, whose last line of a step counts."""
    (tmp_path / "records").mkdir()
    asked = {"type": "forget", "mode": "qa", "subject": "Ada", "query": "Who?"}
    prompts = [{"index": index, **asked} for index in (4, 9, 4)]
    for step, rewards in ((0, [0.0, 0.5, 0.5]), (3, [0.0] * 3), (3, [1.0, 0.5, 0.5])):
        run_log.append_validation(str(tmp_path), step, prompts, rewards)
    (tmp_path / "records" / "metrics.jsonl").write_text('{"step": 1, "data": {"kl": 0.5}}\n')
    found = read_run("rule", tmp_path).validated
    expected = groups_of({(4, "forget"): {0: 0.25, 3: 0.75}, (9, "forget"): {0: 0.5, 3: 0.5}})
    assert found.equals(expected.assign(query="Who?").reset_index(drop=True))


def test_responses_are_written_as_text_and_written_anew(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    tokenizer = byte_level(LLAMA3_TEMPLATE)
    texts = ["I don't know.", "Bä"]
    rows = [torch.tensor(tokenizer(text, add_special_tokens=False).input_ids) for text in texts]
    rows[1] = torch.cat([rows[1], torch.tensor([tokenizer.eos_token_id])])
    lengths = [len(row) for row in rows]
    for rewards in ([0.0, 0.0], [0.5, 1.0]):
        made = make_group(4, rewards=rewards, lengths=lengths)
        answered = replace(made, response_ids=torch.cat(rows).int())
        run_log.write_rollouts(str(tmp_path), 3, [answered], {4: "Who is Ada?"}, tokenizer)
    lines = (tmp_path / "records" / "rollouts" / "3.jsonl").read_text(encoding="utf-8").splitlines()
    common = {"index": 4, "step": 3, "side": "forget", "mode": "qa", "prompt": "Who is Ada?"}
    assert [json.loads(line) for line in lines] == [
        common | {"response": text, "response_ids": row.tolist(), "reward": reward}
        for text, row, reward in zip(texts, rows, [0.5, 1.0], strict=True)
    ]


def test_metrics_of_a_saved_step_are_kept_until_verl_logs_them(config: DictConfig, tmp_path: Path) -> None:
    """verl logs after the checkpoint: a run killed in between has the step in our file alone."""
    for start, saved in enumerate([{"kl": 0.5, "name": "x", "nan": float("nan")}, {"kl": 0.25}]):
        run_log.start(config)
        logged = Path(os.environ["VERL_FILE_LOGGER_PATH"])
        logged.write_text(json.dumps({"step": start + 1, "data": {"kl": 1.0, "seconds": 2.0}}) + "\n")
        run_log.keep_metrics(start + 1, {"kl": 9.0})
        run_log.keep_metrics(start + 2, saved)
    names = [path.name for path in run_log.metrics_files(tmp_path)]
    assert names == ["metrics_at_save.jsonl", "metrics.jsonl", "metrics_at_save.1.jsonl", "metrics.1.jsonl"]
    first = (tmp_path / "records" / "metrics_at_save.jsonl").read_text().splitlines()
    assert json.loads(first[1]) == {"step": 2, "data": {"kl": 0.5, "nan": None}}
    found = read_metrics(tmp_path)
    assert found == {1: {"kl": 1.0, "seconds": 2.0}, 2: {"kl": 1.0, "seconds": 2.0}, 3: {"kl": 0.25}}


def test_a_line_torn_by_a_kill_does_not_spoil_the_next(config: DictConfig, tmp_path: Path) -> None:
    run_log.start(config)
    run_log.append_prompts(str(tmp_path), 1, [], {})
    file = tmp_path / "records" / "prompts.jsonl"
    file.write_text(file.read_text() + '{"step": 2, "pro')
    run_log.start(config)
    run_log.append_prompts(str(tmp_path), 2, [], {})
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [1, 2]


# What is read of it, and the prompts that earned least at first.


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
