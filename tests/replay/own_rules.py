"""Replay rules as a user would write them, each with random numbers or a state."""

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from recipe.rerule.replay import ReplayConfig, RolloutGroup, StoredGroup


class EveryOther:
    """Admission: every other group that is offered, over all steps."""

    def __init__(self, config: ReplayConfig, rng: random.Random) -> None:
        self.offered = 0

    def admit(self, groups: Sequence[RolloutGroup], threshold: float) -> list[RolloutGroup]:
        first, self.offered = self.offered, self.offered + len(groups)
        return [group for place, group in enumerate(groups, start=first) if place % 2 == 0]

    def state(self) -> dict[str, int]:
        return {"offered": self.offered}

    def restore(self, state: dict[str, int]) -> None:
        self.offered = state["offered"]


class EveryOtherAgain(EveryOther):
    """Another class, which goes on with no state of the first."""


class LeastDrawn:
    """Sampling: the groups drawn least so far, of those the oldest, ties at random."""

    def __init__(self, config: ReplayConfig, rng: random.Random) -> None:
        self.rng = rng

    def sample(self, groups: Sequence[StoredGroup], k: int, step: int) -> list[StoredGroup]:
        ordered = sorted(groups, key=lambda one: (one.reuse_count, -one.staleness(step), self.rng.random()))
        return ordered[:k]


class AnyLeaves:
    """Eviction: any group. The list is its own, so it may empty it."""

    def __init__(self, config: ReplayConfig, rng: random.Random) -> None:
        self.rng = rng

    def victim(self, groups: list[StoredGroup]) -> int:
        place = self.rng.randrange(len(groups))
        groups.clear()
        return place


class NewestLeaves:
    """Eviction: the group that has just come. `asked` has what it was shown."""

    asked: ClassVar[list[list[tuple[int, int]]]] = []

    def __init__(self, config: ReplayConfig, rng: random.Random) -> None:
        self.asked.clear()

    def victim(self, groups: list[StoredGroup]) -> int:
        self.asked.append([(one.prompt_index, one.step) for one in groups])
        return len(groups) - 1


class MovingMean:
    """Threshold: the moving mean of the groups' mean rewards."""

    def __init__(self, config: ReplayConfig, rng: random.Random) -> None:
        self.mean: float | None = None

    def update(self, groups: Sequence[RolloutGroup]) -> float:
        for group in groups:
            old = group.mean_reward if self.mean is None else self.mean
            self.mean = 0.9 * old + 0.1 * group.mean_reward
        return self.mean or 0.0

    def state(self) -> list[Any]:
        return [self.mean]

    def restore(self, state: list[Any]) -> None:
        (self.mean,) = state
