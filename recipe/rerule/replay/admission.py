"""Admission: which of a step's rollout groups enter the buffer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .config import ReplayConfig
from .group import RolloutGroup
from .threshold import is_hard


class Admission(Protocol):
    """Chooses among the groups offered at one step."""

    def admit(self, groups: Sequence[RolloutGroup], threshold: float) -> list[RolloutGroup]:
        """The groups to store, in the order offered; ``threshold`` is the step's tau."""


@dataclass(frozen=True)
class HardAdmission:
    """Stores the groups whose mean reward is below the threshold: ReRULE's own rule."""

    def admit(self, groups: Sequence[RolloutGroup], threshold: float) -> list[RolloutGroup]:
        """The hard groups."""
        return [group for group in groups if is_hard(group.mean_reward, threshold)]


@dataclass(frozen=True)
class RandomAdmission:
    """Stores as many of a step's groups as are hard, but whichever: the paper's random-storage arm.

    The number stored is that of the hard rule at every step, so the two arms differ in nothing but which
    groups are stored.
    """

    rng: random.Random

    def admit(self, groups: Sequence[RolloutGroup], threshold: float) -> list[RolloutGroup]:
        """A random subset of the size of the hard one, every such subset equally likely."""
        size = sum(is_hard(group.mean_reward, threshold) for group in groups)
        chosen = sorted(self.rng.sample(range(len(groups)), size))
        return [groups[place] for place in chosen]


@dataclass(frozen=True)
class BernoulliAdmission:
    """Stores each group with the same probability, whatever its reward."""

    rate: float
    rng: random.Random

    def admit(self, groups: Sequence[RolloutGroup], threshold: float) -> list[RolloutGroup]:
        """Take one number a group from the generator and compare it with the rate."""
        return [group for group in groups if self.rng.random() < self.rate]


@dataclass(frozen=True)
class AllAdmission:
    """Stores every group."""

    def admit(self, groups: Sequence[RolloutGroup], threshold: float) -> list[RolloutGroup]:
        """All of them."""
        return list(groups)


@dataclass(frozen=True)
class SignalAdmission:
    """Lets another rule choose among the groups that carry a policy gradient."""

    rule: Admission

    def admit(self, groups: Sequence[RolloutGroup], threshold: float) -> list[RolloutGroup]:
        """Filter first, so that the random rule still stores as many as the hard one."""
        return self.rule.admit([group for group in groups if group.has_signal], threshold)


def build_admission(config: ReplayConfig, rng: random.Random) -> Admission:
    """The admission rule that the settings ask for; only the random ones use the generator."""
    rules: dict[str, Admission] = {
        "hard": HardAdmission(),
        "random": RandomAdmission(rng),
        "bernoulli": BernoulliAdmission(config.admission_rate, rng),
        "all": AllAdmission(),
    }
    rule = rules[config.admission]
    return SignalAdmission(rule) if config.require_signal else rule
