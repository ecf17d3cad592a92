"""Sampling: which stored groups one replay update uses."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .config import ReplayConfig
from .stored import StoredGroup, priority


class Sampler(Protocol):
    """Chooses the groups of one replay update."""

    def sample(self, groups: Sequence[StoredGroup], k: int, step: int) -> list[StoredGroup]:
        """``k`` different groups of ``groups``, which go from oldest to newest and are at least ``k``."""


@dataclass(frozen=True)
class UniformSampler:
    """Every stored group is equally likely."""

    rng: random.Random

    def sample(self, groups: Sequence[StoredGroup], k: int, step: int) -> list[StoredGroup]:
        """A uniform draw without replacement."""
        return self.rng.sample(groups, k)


@dataclass(frozen=True)
class RecentSampler:
    """The newest groups."""

    def sample(self, groups: Sequence[StoredGroup], k: int, step: int) -> list[StoredGroup]:
        """The last ``k``, newest first."""
        return list(reversed(groups))[:k]


@dataclass(frozen=True)
class PrioritizedSampler:
    """Draws in proportion to expected signal, one after the other without replacement.

    The exponential-races form of Efraimidis and Spirakis (2006), "Weighted random sampling with a reservoir":
    the k smallest of independent Exp(priority) times are such a draw. Groups without priority come last, in
    random order, so they are drawn only where nothing else is left.
    """

    half_life: float
    rng: random.Random

    def sample(self, groups: Sequence[StoredGroup], k: int, step: int) -> list[StoredGroup]:
        """Takes one number a group from the generator, whatever the priorities."""
        times = []
        for place, group in enumerate(groups):
            race = -math.log(1.0 - self.rng.random())
            weight = priority(group, step, self.half_life)
            # The second part orders those that never arrive.
            times.append((race / weight if weight > 0 else math.inf, race, place))
        return [groups[place] for *_, place in sorted(times)[:k]]


def build_sampler(config: ReplayConfig, rng: random.Random) -> Sampler:
    """The sampler that the settings ask for."""
    samplers: dict[str, Sampler] = {
        "uniform": UniformSampler(rng),
        "recent": RecentSampler(),
        "prioritized": PrioritizedSampler(config.priority_half_life, rng),
    }
    return samplers[config.sampling]
