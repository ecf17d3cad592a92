"""What the replay buffer holds, and its rules: which groups are hard, stored and drawn."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .config import ReplayConfig
from .group import PLANES, REWARD_RESOLUTION, RolloutGroup


@dataclass(slots=True)
class StoredGroup:
    """One group in the buffer; everything but ``reuse_count`` stays as it was stored.

    Bytes rather than tensors: nothing that shares memory with a stored group can exist, and a group costs a
    few hundred bytes beyond its tensors' own, where nine small tensors cost several thousand.

    Attributes:
        prompt_index, side, mode, step: as in RolloutGroup.
        mean_reward: mean raw reward.
        signal: as of RolloutGroup.
        n, tokens: rollouts, response tokens of all rollouts together.
        has_ref: whether reference log-probs are there.
        data: each plane of RolloutGroup that is there, in the order of PLANES.
        reuse_count: how often the group was drawn.
    """

    prompt_index: int
    side: str
    mode: str
    step: int
    mean_reward: float
    signal: float
    n: int
    tokens: int
    has_ref: bool
    data: tuple[bytes, ...]
    reuse_count: int = 0

    @classmethod
    def of(cls, group: RolloutGroup, reuse_count: int = 0) -> StoredGroup:
        """Copy a group into bytes."""
        return cls(
            prompt_index=group.prompt_index,
            side=group.side,
            mode=group.mode,
            step=group.step,
            mean_reward=group.mean_reward,
            signal=group.signal,
            n=group.n,
            tokens=len(group.response_ids),
            has_ref=group.ref_log_probs is not None,
            data=tuple(plane.numpy().tobytes() for plane in group.planes().values()),
            reuse_count=reuse_count,
        )

    def group(self) -> RolloutGroup:
        """The group again, in fresh memory."""
        names = [name for name in PLANES if self.has_ref or name != "ref_log_probs"]
        planes = {
            name: torch.frombuffer(bytearray(data), dtype=PLANES[name])
            for name, data in zip(names, self.data, strict=True)
        }
        return RolloutGroup(self.prompt_index, self.side, self.mode, self.step, **planes)

    def staleness(self, step: int) -> int:
        """Training steps since the group was stored."""
        return step - self.step

    @property
    def has_signal(self) -> bool:
        """As of RolloutGroup."""
        return self.signal > 0

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(map(len, self.data))


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
