"""Visits: how often each prompt was tried and the best it ever earned, to tell prompts that never will."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .group import RolloutGroup
from .threshold import REWARD_RESOLUTION


class Visits:
    """Counts the groups of each prompt and keeps the highest reward any of its rollouts earned.

    A prompt is set aside while it has been visited ``limit`` times or more and never earned more than
    ``reward``: a wrong gold answer or a detector's mistake makes a prompt that is hard for ever, and its
    groups would fill the buffer. One better rollout, and it takes part again.

    Args:
        limit: visits after which a prompt may be set aside; None never sets any aside.
        reward: the reward that has to be exceeded once.
    """

    def __init__(self, limit: int | None, reward: float) -> None:
        self.limit = limit
        self.reward = reward
        self._visits: dict[int, int] = {}
        self._best: dict[int, float] = {}

    def observe(self, groups: Sequence[RolloutGroup]) -> None:
        """Count one visit for each group."""
        for group in groups:
            index, best = group.prompt_index, float(group.rewards.max())
            self._visits[index] = self._visits.get(index, 0) + 1
            self._best[index] = max(best, self._best.get(index, best))

    def is_set_aside(self, prompt_index: int) -> bool:
        """Whether the prompt's groups are neither kept nor stored for now."""
        return (
            self.limit is not None
            and self._visits.get(prompt_index, 0) >= self.limit
            and self._best[prompt_index] <= self.reward + REWARD_RESOLUTION
        )

    def set_aside(self) -> list[int]:
        """The prompts set aside, in ascending order."""
        if self.limit is None:
            return []
        return sorted(index for index in self._visits if self.is_set_aside(index))

    def state(self) -> dict[str, tuple[int, float]]:
        """(visits, best reward) by prompt index."""
        return {str(index): (count, self._best[index]) for index, count in self._visits.items()}

    def restore(self, state: Mapping[str, Iterable[float]]) -> None:
        """Inverse of ``state``."""
        self._visits, self._best = {}, {}
        for key, (count, best) in state.items():
            self._visits[int(key)], self._best[int(key)] = int(count), best
