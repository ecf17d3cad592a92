"""The replay buffer: stored groups up to a fixed number, and who leaves it.

A full buffer lets one group go (Eviction), groups leave by age or use (Limit), and prompts that never earn a
reward are set aside (Visits).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from .config import ReplayConfig
from .group import PLANES, REWARD_RESOLUTION, ROW_PLANES, TOKEN_PLANES, RolloutGroup

# The one-byte plane comes last, so that every other plane starts at a multiple of its four bytes.
_LAYOUT = sorted(PLANES, key=lambda name: PLANES[name] == torch.bool)


@dataclass(slots=True)
class StoredGroup:
    """One group in the buffer; everything but ``reuse_count`` and ``rollout_uses`` stays as it was stored.

    Bytes rather than tensors: nothing that shares memory with a stored group can exist, and a group costs a
    few hundred bytes beyond its tensors' own, where nine small tensors cost several thousand.

    Attributes:
        prompt_index, side, mode, step: as in RolloutGroup.
        mean_reward: mean raw reward.
        signal: as of RolloutGroup.
        n, prompt_length, tokens: rollouts, prompt tokens, response tokens of all rollouts together.
        has_ref: whether reference log-probs are there.
        data: the planes of RolloutGroup, one after the other.
        reuse_count: how often the group was drawn; of replay.unit=rollout, how often one of its rollouts.
        rollout_uses: how often each rollout was drawn by itself; empty while none was.
    """

    prompt_index: int
    side: str
    mode: str
    step: int
    mean_reward: float
    signal: float
    n: int
    prompt_length: int
    tokens: int
    has_ref: bool
    data: bytes
    reuse_count: int = 0
    rollout_uses: tuple[int, ...] = ()
    _rollout_signals: list[float] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, group: RolloutGroup, reuse_count: int = 0, rollout_uses: tuple[int, ...] = ()) -> StoredGroup:
        """Copy a group into a block of bytes."""
        planes = group.planes()
        return cls(
            prompt_index=group.prompt_index,
            side=group.side,
            mode=group.mode,
            step=group.step,
            mean_reward=group.mean_reward,
            signal=group.signal,
            n=group.n,
            prompt_length=len(group.prompt_ids),
            tokens=len(group.response_ids),
            has_ref=group.ref_log_probs is not None,
            data=b"".join(planes[name].numpy().tobytes() for name in _LAYOUT if name in planes),
            reuse_count=reuse_count,
            rollout_uses=rollout_uses,
        )

    def group(self) -> RolloutGroup:
        """The group again, in fresh memory."""
        block = torch.frombuffer(bytearray(self.data), dtype=torch.uint8)
        planes: dict[str, Tensor] = {}
        start = 0
        for name, length in self._lengths().items():
            end = start + length * PLANES[name].itemsize
            planes[name] = block[start:end].view(PLANES[name])
            start = end
        return RolloutGroup.known(
            prompt_index=self.prompt_index, side=self.side, mode=self.mode, step=self.step, **planes
        )

    def rollouts(self) -> list[StoredRollout]:
        """Each rollout, to be drawn by itself, in order."""
        if self._rollout_signals is None:  # reading them takes as long as drawing the group
            self._rollout_signals = self.group().rollout_signals()
        return [StoredRollout(self, place, signal) for place, signal in enumerate(self._rollout_signals)]

    def staleness(self, step: int) -> int:
        """Training steps since the group was stored."""
        return step - self.step

    def count_draw(self) -> None:
        """Note that the group was drawn."""
        self.reuse_count += 1

    @property
    def has_signal(self) -> bool:
        """As of RolloutGroup."""
        return self.signal > 0

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return len(self.data)

    def _lengths(self) -> dict[str, int]:
        lengths = {"prompt_ids": self.prompt_length}
        lengths |= dict.fromkeys(ROW_PLANES, self.n) | dict.fromkeys(TOKEN_PLANES, self.tokens)
        present = [name for name in _LAYOUT if self.has_ref or name != "ref_log_probs"]
        return {name: lengths[name] for name in present}


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """One rollout of a stored group, as replay.unit=rollout draws it.

    Attributes:
        stored: the group, which stays whole in the buffer.
        place: of the rollout in the group.
        signal: as of RolloutGroup.rollout_signals.
    """

    stored: StoredGroup
    place: int
    signal: float

    @property
    def reuse_count(self) -> int:
        """How often this rollout was drawn."""
        return self._uses[self.place]

    def group(self) -> RolloutGroup:
        """The rollout as a group of its own, in fresh memory."""
        return self.stored.group().rollout(self.place)

    def staleness(self, step: int) -> int:
        """Training steps since its group was stored."""
        return self.stored.staleness(step)

    def count_draw(self) -> None:
        """Note that the rollout was drawn."""
        uses = list(self._uses)
        uses[self.place] += 1
        self.stored.rollout_uses = tuple(uses)
        self.stored.count_draw()

    @property
    def _uses(self) -> tuple[int, ...]:
        return self.stored.rollout_uses or (0,) * self.stored.n


class Eviction(Protocol):
    """Chooses who leaves a buffer that holds one group too many."""

    def victim(self, groups: Sequence[StoredGroup]) -> int:
        """Place of the group that leaves; ``groups`` is not empty and goes from oldest to newest."""


@dataclass(frozen=True)
class FifoEviction:
    """First in, first out."""

    def victim(self, groups: Sequence[StoredGroup]) -> int:
        """The oldest place."""
        return 0


@dataclass(frozen=True)
class StalenessEviction:
    """The stalest group leaves; among equally stale ones the most often drawn, then the first in."""

    def victim(self, groups: Sequence[StoredGroup]) -> int:
        """Groups of one step are equally stale, and there are many of them."""
        ages = [(group.step, -group.reuse_count) for group in groups]
        return min(range(len(groups)), key=lambda place: (ages[place], place))


@dataclass(frozen=True)
class SignalEviction:
    """The group with the least advantage magnitude leaves; among equals the first in."""

    def victim(self, groups: Sequence[StoredGroup]) -> int:
        """So groups without any policy gradient leave first."""
        return min(range(len(groups)), key=lambda place: (groups[place].signal, place))


class Limit(Protocol):
    """Tells groups that must leave however much room there is."""

    def exceeded(self, group: StoredGroup, step: int) -> bool:
        """Whether the group leaves at this step."""


@dataclass(frozen=True)
class StalenessLimit:
    """A group older than ``steps`` training steps leaves."""

    steps: int

    def exceeded(self, group: StoredGroup, step: int) -> bool:
        """A group as old as the limit stays."""
        return group.staleness(step) > self.steps


@dataclass(frozen=True)
class ReuseLimit:
    """A group drawn ``draws`` times leaves."""

    draws: int

    def exceeded(self, group: StoredGroup, step: int) -> bool:
        """It is drawn ``draws`` times and no more."""
        return group.reuse_count >= self.draws


def build_eviction(config: ReplayConfig, own: Eviction | None = None) -> Eviction:
    """The eviction rule that the settings ask for; ``own``: the user's, where they name one."""
    if own is not None:
        return own
    rules: dict[str, Eviction] = {
        "fifo": FifoEviction(),
        "staleness": StalenessEviction(),
        "signal": SignalEviction(),
    }
    return rules[config.eviction]


def build_limits(config: ReplayConfig) -> dict[str, Limit]:
    """The limits that the settings ask for, by the name under which departures are recorded."""
    limits: dict[str, Limit] = {}
    if config.max_staleness is not None:
        limits["staleness"] = StalenessLimit(config.max_staleness)
    if config.max_reuse is not None:
        limits["reuse"] = ReuseLimit(config.max_reuse)
    return limits


class ReplayBuffer:
    """Never holds more than ``capacity`` groups; iterates in the order of storing."""

    def __init__(self, capacity: int, eviction: Eviction | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"the capacity of a replay buffer is {capacity}; it must be at least 1")
        self.capacity = capacity
        self._eviction = eviction or FifoEviction()
        self._groups: list[StoredGroup] = []

    def add(self, group: RolloutGroup, reuse_count: int = 0) -> StoredGroup | None:
        """Store a copy of a group, drawn so often so far; return the one that had to leave, if any."""
        self._groups.append(StoredGroup.of(group, reuse_count))
        if len(self._groups) <= self.capacity:
            return None
        return self._groups.pop(self._eviction.victim(self._groups))

    def restore(self, groups: Iterable[StoredGroup]) -> None:
        """Hold copies of saved groups, which are at most ``capacity``, in place of what is here."""
        self._groups = [replace(group) for group in groups]

    def remove(self, leaves: Callable[[StoredGroup], bool]) -> list[StoredGroup]:
        """Drop the groups for which ``leaves`` holds and return them."""
        removed = [group for group in self._groups if leaves(group)]
        if removed:
            self._groups = [group for group in self._groups if not leaves(group)]
        return removed

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[StoredGroup]:
        return iter(self._groups)

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors together."""
        return sum(group.nbytes for group in self)


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
