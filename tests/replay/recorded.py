"""A made-up training run: the groups of each step, and what a replay does with them."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from typing import Any

from recipe.rerule.replay import Replay, RolloutGroup
from tests.replay.groups import make_group

STEPS, PROMPTS = 18, 7
PAPER = {
    "threshold_rule": "fixed",
    "threshold": 0.6,
    "require_signal": False,
    "sampling": "uniform",
    "min_groups": 4,
    "warmup_steps": 3,
    "capacity": 12,
    "groups_per_update": 4,
}


@functools.cache
def offered(step: int) -> list[RolloutGroup]:
    """The groups of one step: four rewards each, of hard and easy prompts, some without signal."""
    rng = random.Random(step)
    return [_group(index, step, rng) for index in range(PROMPTS)]


def _group(index: int, step: int, rng: random.Random) -> RolloutGroup:
    chance = 0.0 if index == 0 else index / PROMPTS
    rewards = [float(rng.random() < chance) for _ in range(4)]
    mean = sum(rewards) / 4
    return make_group(
        index,
        step,
        rewards=rewards,
        advantages=[reward - mean for reward in rewards],
        lengths=[1 + rng.randrange(4) for _ in range(4)],
        side=("forget", "retain")[index % 2],
        mode=("qa", "fb")[index // 2 % 2],
    )


def steps(memory: Replay, first: int = 1) -> Iterator[dict[str, Any]]:
    """Record and metrics of each step of a run, as JSON gives them back."""
    for step in range(first, STEPS + 1):
        memory.offer(offered(step), step)
        for _ in range(memory.config.updates_per_step):
            memory.draw(step, multiple_of=2)
        yield json.loads(json.dumps({"record": memory.log.record(), "metrics": memory.log.metrics()}))
