"""Selection: which groups are hard, which are stored, which are drawn, and from which step on."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from .buffer import StoredGroup
from .config import ReplayConfig, Start
from .group import REWARD_RESOLUTION, RolloutGroup


def is_hard(mean_reward: float, threshold: float) -> bool:
    """Whether a mean raw reward is below the threshold (strictly; the paper's "mean reward < tau")."""
    return mean_reward < threshold - REWARD_RESOLUTION


class Threshold:
    """Tau of each step: the paper's constant, or a quantile of the last group means, the step's own included.

    Linear interpolation between order statistics (numpy's default). Being hard is strict, so where both order
    statistics around the quantile are the lowest mean of the window, no group is hard.
    """

    def __init__(self, config: ReplayConfig) -> None:
        self._fixed = config.threshold if config.threshold_rule == "fixed" else None
        self._quantile = config.threshold_quantile
        self._means: deque[float] = deque(maxlen=config.threshold_window)

    def update(self, groups: Sequence[RolloutGroup]) -> float:
        """Tau for the step's groups, after seeing them; called once a step.

        Of the quantile 0, below which no mean lies, before any group was seen.
        """
        if self._fixed is not None:
            return self._fixed
        self._means.extend(group.mean_reward for group in groups)
        return float(np.quantile(self._means, self._quantile)) if self._means else 0.0

    def state(self) -> list[float]:
        """The means, oldest first."""
        return list(self._means)

    def restore(self, state: Iterable[float]) -> None:
        """Continue with saved means; a smaller window keeps the newest."""
        self._means.clear()
        self._means.extend(state)


def admitted(
    groups: Sequence[RolloutGroup], threshold: float, rule: str, rng: random.Random
) -> list[RolloutGroup]:
    """The groups of one step that are stored, in the order offered.

    Args:
        groups: those offered.
        threshold: the step's tau.
        rule: "hard": ReRULE's own rule; "random": as many as are hard, every such subset equally likely, so
            that the paper's random-storage arm differs in nothing but which groups are stored; "all".
        rng: used by "random" alone.
    """
    hard = [group for group in groups if is_hard(group.mean_reward, threshold)]
    if rule == "hard":
        return hard
    if rule == "all":
        return list(groups)
    return [groups[place] for place in sorted(rng.sample(range(len(groups)), len(hard)))]


def sampled(groups: Sequence[StoredGroup], k: int, rule: str, rng: random.Random) -> list[StoredGroup]:
    """``k`` different groups for one replay update.

    Args:
        groups: at least ``k``, from oldest to newest.
        rule: "recent": the newest first; "uniform": every group is equally likely, without replacement.
        rng: used by "uniform" alone.
    """
    return list(reversed(groups))[:k] if rule == "recent" else rng.sample(groups, k)


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
        self.is_open = self.is_open or (size >= self.min_groups and step >= self.first_step)
        return self.is_open
