"""Replay rules of a user's own on the real stack: found by its processes, resumed with their state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.rerule.replay.state import read_record
from tests.e2e.stack import Command, stage2_arguments

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(600)]

RULES = """
class EveryOther:
    def __init__(self, config, rng):
        self.offered = 0

    def admit(self, groups, threshold):
        first, self.offered = self.offered, self.offered + len(groups)
        return [group for place, group in enumerate(groups, start=first) if place % 2 == 0]

    def state(self):
        return {"offered": self.offered}

    def restore(self, state):
        self.offered = state["offered"]
"""


def test_an_own_admission_stores_and_goes_on_with_its_state(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An odd number of prompts a step, so that every step but the first depends on the steps before it."""
    (tmp_path / "rules_of_mine.py").write_text(RULES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    run_folder = tmp_path / "run"
    arguments = stage2_arguments(
        micro_world,
        run_folder,
        "data.train_batch_size=3",
        "actor_rollout_ref.actor.ppo_mini_batch_size=3",
        "trainer.save_freq=2",
        "replay.admission=rules_of_mine:EveryOther",
        "replay.require_signal=false",
        "replay.min_groups=1",
        "replay.groups_per_update=2",
        "replay.warmup_steps=0",
    )
    first = command("-m", "recipe.rerule.main", *arguments, "trainer.total_training_steps=2")
    assert first.wait() == 0, first.output[-3000:]
    record = read_record(run_folder / "global_step_2" / "replay")
    assert record["rules"] == {"admission": {"class": "rules_of_mine:EveryOther", "state": {"offered": 6}}}
    more = ["trainer.total_training_steps=3", "trainer.resume_mode=auto"]
    second = command("-m", "recipe.rerule.main", *arguments, *more)
    assert second.wait() == 0, second.output[-3000:]
    assert read_record(run_folder / "global_step_3" / "replay")["rules"]["admission"]["state"] == {
        "offered": 9
    }
    lines = (run_folder / "records" / "replay.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["stored"]) for line in lines] == [2, 1, 2]
