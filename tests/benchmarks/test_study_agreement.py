"""A recorded run done again: the loop's own records give the same gradients; what does not fit is named."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.study.agreement import Again, Both, as_batch, drawn_groups
from benchmarks.study.loop import Run, Settings
from benchmarks.study.runs import StudyError
from recipe.rerule import minimal
from recipe.rerule.replay import ReplayConfig
from tests.benchmarks.small_study import REPLAY, SIZES, by_length

Lines = list[dict[str, Any]]


def new_run(made: SimpleNamespace) -> Run:
    settings = Settings(**SIZES, replay=ReplayConfig.from_dict(REPLAY))
    return Run(copy.deepcopy(made.model), made.model, made.tokenizer, settings)


def recorded(run: Run, rows: list[Any], step: int) -> tuple[Lines, dict[str, float]]:
    """The step's records as the recipe writes them, and its metrics."""
    metrics, groups = run.step(rows, step)
    lines = [
        {"index": group.prompt_index, "response_ids": ids.tolist(), "reward": round(reward, 6)}
        for group in groups
        for ids, reward in zip(
            group.response_ids.split(group.lengths.tolist()), group.rewards.tolist(), strict=True
        )
    ]
    return lines, metrics


@pytest.fixture
def twice(made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Two recorded steps, the second with a replay update, and the gradient norms of each."""
    monkeypatch.setattr(minimal, "rewards_of", by_length)
    torch.manual_seed(0)
    run, rows, norms = new_run(made), made.world.train[:4], []
    descend = run._descend
    monkeypatch.setattr(run, "_descend", lambda *parts: norms.append(descend(*parts)) or norms[-1])
    steps = [recorded(run, rows, step) for step in (1, 2)]
    assert run.replay is not None
    draws = {2: [(group.prompt_index, group.step) for group in run.replay.log.draws[0].groups]}
    by_index = {int(row["extra_info"]["index"]): row for row in rows}
    return SimpleNamespace(steps=steps, norms=norms, draws=draws, again=Again(new_run(made), by_index, draws))


def test_updates_and_replays_are_those_of_the_records(twice: SimpleNamespace) -> None:
    found = [twice.again.step(step, lines) for step, (lines, _) in enumerate(twice.steps, start=1)]
    assert [set(measures) for measures in found] == [
        {"actor/grad_norm"},
        {"actor/grad_norm", "replay/grad_norm", "replay/effective_sample_size"},
    ]
    norms = [found[0]["actor/grad_norm"], found[1]["actor/grad_norm"], found[1]["replay/grad_norm"]]
    assert norms == pytest.approx(twice.norms, rel=1e-5)
    sample_size = "replay/effective_sample_size"
    assert found[1][sample_size] == pytest.approx(twice.steps[1][1][sample_size], rel=1e-6)


def test_another_token_gives_another_gradient(twice: SimpleNamespace) -> None:
    lines = copy.deepcopy(twice.steps[0][0])
    first = next(line for line in lines if len(line["response_ids"]) > 2)
    first["response_ids"][0], first["response_ids"][1] = (
        first["response_ids"][1],
        first["response_ids"][0] + 1,
    )
    texts = twice.again._run.policy.tokenizer.batch_decode(
        [line["response_ids"] for line in lines], skip_special_tokens=True
    )
    for line, answer in zip(lines, by_length(texts, [], {}), strict=True):
        line["reward"] = answer["score"]
    assert twice.again.step(1, lines)["actor/grad_norm"] != pytest.approx(twice.norms[0], rel=1e-5)


def test_rewards_that_are_not_of_the_responses_are_named(twice: SimpleNamespace) -> None:
    lines = copy.deepcopy(twice.steps[0][0])
    lines[0]["reward"] += 0.25
    with pytest.raises(StudyError, match="step 1: the recorded rewards"):
        twice.again.step(1, lines)


def test_records_without_tokens_are_named(made: SimpleNamespace) -> None:
    with pytest.raises(StudyError, match="lack the tokens"):
        as_batch(new_run(made).policy, made.world.train[:1], [{"index": 1, "reward": 0.0}])


def test_draws_are_read_by_step(tmp_path: Any) -> None:
    assert drawn_groups(tmp_path) == {}
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "replay.jsonl").write_text(
        '{"step": 1, "drawn": []}\n{"step": 2, "drawn": [[[7, 1], [9, 2]]]}\n'
    )
    assert drawn_groups(tmp_path) == {1: [], 2: [(7, 1), (9, 2)]}
    assert Both(1, "actor/grad_norm", 2.0, 1.5).difference == 0.25
    assert Both(1, "actor/grad_norm", 0.0, 1.0).difference == 1.0
    assert Both(1, "actor/grad_norm", 0.0, 3e-9).difference == 0.0
