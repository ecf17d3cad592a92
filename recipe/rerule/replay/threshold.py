"""The threshold (tau) below which a group is hard."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .config import ReplayConfig
from .group import RolloutGroup

# Rewards are float32: a mean this close to the threshold equals it, and a group at the threshold is not hard.
REWARD_RESOLUTION = 1e-6


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


def build_threshold(config: ReplayConfig) -> Threshold:
    """The threshold that the settings ask for."""
    if config.threshold_rule == "quantile":
        return QuantileThreshold(config.threshold_quantile, config.threshold_window)
    assert config.threshold is not None  # ReplayConfig refuses that
    return FixedThreshold(config.threshold)
