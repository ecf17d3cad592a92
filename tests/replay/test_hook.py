"""The hook with a trainer of three lines: what it gives before the update, asks for after it, and logs."""

from __future__ import annotations

from typing import Any

import pytest

from recipe.rerule.replay import Replay, ReplayConfig, ReplayHook, RolloutGroup
from tests.replay import recorded
from tests.replay.groups import keys, make_group
from tests.replay.recorded import PAPER, offered

STEPS = 6


def train(hook: ReplayHook, steps: int = STEPS) -> list[list[tuple[list[tuple[int, int]], bool]]]:
    """For each step what `update_replay` was called with."""
    asked = []
    for step in range(1, steps + 1):
        calls: list[tuple[list[tuple[int, int]], bool]] = []

        def update_replay(
            drawn: list[RolloutGroup], more_follow: bool, calls: list[Any] = calls
        ) -> dict[str, float]:
            calls.append((keys(drawn), more_follow))
            return {"replay/pg_loss": float(len(calls)), "replay/seconds/train": 0.5}

        hook.after_update(hook.before_update(offered(step), step), update_replay)
        asked.append(calls)
    return asked


def test_the_hook_offers_and_draws_as_a_trainer_that_calls_replay_itself() -> None:
    hook, memory = ReplayHook(ReplayConfig(**PAPER), multiple_of=2), Replay(ReplayConfig(**PAPER))
    asked = train(hook)
    expected = [step["record"]["drawn"] for step, _ in zip(recorded.steps(memory), asked, strict=False)]
    assert [[[list(key) for key in drawn] for drawn, _ in calls] for calls in asked] == expected


def test_all_but_the_last_update_of_a_step_are_told_that_more_follow() -> None:
    hook = ReplayHook(ReplayConfig(**{**PAPER, "updates_per_step": 3}))
    assert [[more for _, more in calls] for calls in train(hook, 5)] == [[]] * 3 + [[True, True, False]] * 2


def test_everything_is_drawn_before_the_first_update() -> None:
    hook = ReplayHook(ReplayConfig(**{**PAPER, "warmup_steps": 0, "updates_per_step": 2}))
    draws = hook.before_update(offered(1), 1)
    assert [len(drawn) for drawn in draws] == [4, 4]
    before = hook.log.record()
    hook.after_update(draws, lambda drawn, more_follow: {})
    assert hook.log.record() == before


def test_the_draws_are_rounded_down_to_the_data_parallel_size() -> None:
    hook = ReplayHook(ReplayConfig(**PAPER))
    hook.multiple_of = 3
    assert [len(drawn) for calls in train(hook) for drawn, _ in calls] == [3, 3, 3]


def test_metrics_hold_replay_updates_and_seconds() -> None:
    hook = ReplayHook(ReplayConfig(**{**PAPER, "updates_per_step": 2}))
    train(hook)
    metrics = hook.metrics({"replay/seconds/offer": 10.0, "replay/seconds/update": 3.0})
    assert metrics["replay/drawn_groups"] == 8
    assert metrics["replay/updates"] == 2
    assert metrics["replay/pg_loss"] == 1.5
    assert metrics["replay/seconds/train"] == 1.0
    assert metrics["replay/seconds"] == 3.0
    assert 10 < metrics["replay/seconds/offer"] < 11
    assert metrics["replay/bookkeeping_seconds"] == pytest.approx(
        metrics["replay/seconds/offer"] + metrics["replay/seconds/draw"]
    )


def test_without_replay_nothing_is_stored_or_drawn_and_the_shares_are_logged() -> None:
    hook = ReplayHook(ReplayConfig(enable=False))
    assert train(hook) == [[]] * STEPS
    assert hook.replay is None
    metrics = hook.metrics()
    assert 0 < metrics["replay/hard_share"] < 1
    assert "replay/size" not in metrics
    assert "replay/updates" not in metrics
    on = ReplayHook(ReplayConfig())
    train(on)
    assert metrics["replay/threshold"] == on.metrics()["replay/threshold"]


def test_the_control_trains_on_as_many_of_the_steps_own_groups_and_records_no_draw() -> None:
    replay, control = ReplayHook(ReplayConfig(**PAPER)), ReplayHook(ReplayConfig(**PAPER, update="on_policy"))
    drawn, own = train(replay), train(control)
    assert [len(calls) for calls in own] == [len(calls) for calls in drawn] == [0, 0, 0, 1, 1, 1]
    for step, (ours, stored) in enumerate(zip(own, drawn, strict=True), start=1):
        for (taken, _), (theirs, _) in zip(ours, stored, strict=True):
            assert len(set(taken)) == len(taken) == min(len(theirs), len(offered(step)))
            assert {made for _, made in taken} == {step}
    assert control.log.record()["drawn"] == []
    assert control.metrics()["replay/drawn_groups"] == 0
    assert control.metrics()["replay/updates"] == 1


def test_the_control_takes_groups_with_signal_where_replay_does_and_as_many_for_each_rank() -> None:
    flat, mixed = [make_group(i, rewards=[0.5, 0.5]) for i in range(4)], [make_group(i) for i in range(4, 9)]
    replay = Replay(ReplayConfig(require_signal=True))
    assert len(replay.of_the_step(flat + mixed, 32, multiple_of=2)) == 4
    assert {group.prompt_index for group in replay.of_the_step(flat + mixed, 32)} == set(range(4, 9))
    every = Replay(ReplayConfig(require_signal=False)).of_the_step(flat + mixed, 32)
    assert {group.prompt_index for group in every} == set(range(9))
