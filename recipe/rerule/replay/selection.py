"""Selection: which groups are hard, which are stored, which are drawn, and from which step on.

Threshold (tau), Admission, Sampler and Gate, each with the rules that `ReplayConfig` names.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from .buffer import StoredGroup, StoredRollout
from .config import ReplayConfig, Start
from .group import REWARD_RESOLUTION, RolloutGroup


def is_hard(mean_reward: float, threshold: float) -> bool:
    """Whether a mean raw reward is below the threshold (strictly; the paper's "mean reward < tau")."""
    return mean_reward < threshold - REWARD_RESOLUTION


class Threshold(Protocol):
    """Gives each step its threshold."""

    def update(self, groups: Sequence[RolloutGroup]) -> float:
        """The threshold for the step's groups, after seeing them; called once a step."""

    def state(self) -> list[float]:
        """What must survive a restart."""

    def restore(self, state: Iterable[float]) -> None:
        """Inverse of ``state``."""


@dataclass(frozen=True)
class FixedThreshold:
    """The paper's constant tau."""

    value: float

    def update(self, groups: Sequence[RolloutGroup]) -> float:
        """The same value at every step."""
        return self.value

    def state(self) -> list[float]:
        """Nothing."""
        return []

    def restore(self, state: Iterable[float]) -> None:
        """Nothing to restore."""


class QuantileThreshold:
    """A quantile of the last ``window`` group means, the step's own included.

    Linear interpolation between order statistics (numpy's default). Being hard is strict, so where both order
    statistics around the quantile are the lowest mean of the window, no group is hard.
    """

    def __init__(self, quantile: float, window: int) -> None:
        self.quantile = quantile
        self._means: deque[float] = deque(maxlen=window)

    def update(self, groups: Sequence[RolloutGroup]) -> float:
        """Take in the step's means; 0, below which no mean lies, before any group was seen."""
        self._means.extend(group.mean_reward for group in groups)
        return float(np.quantile(self._means, self.quantile)) if self._means else 0.0

    def state(self) -> list[float]:
        """The means, oldest first."""
        return list(self._means)

    def restore(self, state: Iterable[float]) -> None:
        """Continue with saved means; a smaller window keeps the newest."""
        self._means.clear()
        self._means.extend(state)


def build_threshold(config: ReplayConfig, own: Threshold | None = None) -> Threshold:
    """The threshold that the settings ask for; ``own``: the user's, where they name one."""
    if own is not None:
        return own
    if config.threshold_rule == "quantile":
        return QuantileThreshold(config.threshold_quantile, config.threshold_window)
    assert config.threshold is not None  # ReplayConfig refuses that
    return FixedThreshold(config.threshold)


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


def build_admission(config: ReplayConfig, rng: random.Random, own: Admission | None = None) -> Admission:
    """The admission rule that the settings ask for; only the random ones use the generator.

    ``own``: the user's rule, where the settings name one.
    """
    rules: dict[str, Admission] = {
        "hard": HardAdmission(),
        "random": RandomAdmission(rng),
        "bernoulli": BernoulliAdmission(config.admission_rate, rng),
        "all": AllAdmission(),
    }
    rule = own if own is not None else rules[config.admission]
    return SignalAdmission(rule) if config.require_signal else rule


Drawable = TypeVar("Drawable", StoredGroup, StoredRollout)


def priority(
    stored: StoredGroup | StoredRollout, step: int, half_life: float, use_half_life: float | None = None
) -> float:
    """Expected signal: advantage magnitude, halved every ``half_life`` steps since storing.

    ``use_half_life``: also halved every so many draws of it; None does not count draws.
    """
    halvings = stored.staleness(step) / half_life
    if use_half_life is not None:
        halvings += stored.reuse_count / use_half_life
    return stored.signal * math.exp2(-halvings)


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
    use_half_life: float | None = None

    def sample(self, groups: Sequence[StoredGroup], k: int, step: int) -> list[StoredGroup]:
        """Takes one number a group from the generator, whatever the priorities."""
        times = []
        for place, group in enumerate(groups):
            race = -math.log(1.0 - self.rng.random())
            weight = priority(group, step, self.half_life, self.use_half_life)
            # The second part orders those that never arrive.
            times.append((race / weight if weight > 0 else math.inf, race, place))
        return [groups[place] for *_, place in sorted(times)[:k]]


@dataclass(frozen=True)
class HighestSampler:
    """The groups, or the rollouts, of the highest priority; of equal ones those that were stored last."""

    half_life: float
    use_half_life: float | None = None

    def sample(self, groups: Sequence[Drawable], k: int, step: int) -> list[Drawable]:
        """Highest first; takes nothing from chance."""

        def rank(stored: Drawable) -> float:
            return -priority(stored, step, self.half_life, self.use_half_life)

        return sorted(reversed(groups), key=rank)[:k]


def build_sampler(config: ReplayConfig, rng: random.Random, own: Sampler | None = None) -> Sampler:
    """The sampler that the settings ask for; ``own``: the user's, where they name one."""
    if own is not None:
        return own
    half_life, use_half_life = config.priority_half_life, config.priority_use_half_life
    samplers: dict[str, Sampler] = {
        "uniform": UniformSampler(rng),
        "recent": RecentSampler(),
        "prioritized": PrioritizedSampler(half_life, rng, use_half_life),
        "highest": HighestSampler(half_life, use_half_life),
    }
    return samplers[config.sampling]


class Gate:
    """Opens once enough groups are stored and the warm-up is over, and stays open from then on.

    Args:
        min_groups: stored groups needed (B_min).
        warmup_steps: T_warm.
        start: "after" needs step > warmup_steps, "at" needs step >= warmup_steps.
    """

    def __init__(self, min_groups: int, warmup_steps: int, start: Start = "after") -> None:
        self.min_groups = min_groups
        self.first_step = warmup_steps + 1 if start == "after" else warmup_steps
        self.is_open = False

    def update(self, size: int, step: int) -> bool:
        """Open if ``size`` stored groups at ``step`` suffice; return whether the gate is open."""
        self.is_open = self.would_open(size, step)
        return self.is_open

    def would_open(self, size: int, step: int) -> bool:
        """Whether the gate is open, or ``update`` would open it."""
        return self.is_open or (size >= self.min_groups and step >= self.first_step)
