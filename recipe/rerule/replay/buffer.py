"""The replay buffer: stored groups up to a fixed number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .group import PLANES, ROW_PLANES, TOKEN_PLANES, RolloutGroup

# The one-byte plane comes last, so that every other plane starts at a multiple of its four bytes.
_LAYOUT = sorted(PLANES, key=lambda name: PLANES[name] == torch.bool)


@dataclass(slots=True)
class StoredGroup:
    """One group in the buffer; everything but ``reuse_count`` stays as it was stored.

    Bytes rather than tensors: nothing that shares memory with a stored group can exist, and a group costs a
    few hundred bytes beyond its tensors' own, where nine small tensors cost several thousand.

    Attributes:
        prompt_index, side, mode, step: as in RolloutGroup.
        mean_reward: mean raw reward.
        signal: as of RolloutGroup.
        n, prompt_length, tokens: rollouts, prompt tokens, response tokens of all rollouts together.
        has_ref: whether reference log-probs are there.
        data: the planes of RolloutGroup, one after the other.
        reuse_count: how often the group was drawn.
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

    @classmethod
    def of(cls, group: RolloutGroup, reuse_count: int = 0) -> StoredGroup:
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
        return len(self.data)

    def _lengths(self) -> dict[str, int]:
        lengths = {"prompt_ids": self.prompt_length}
        lengths |= dict.fromkeys(ROW_PLANES, self.n) | dict.fromkeys(TOKEN_PLANES, self.tokens)
        present = [name for name in _LAYOUT if self.has_ref or name != "ref_log_probs"]
        return {name: lengths[name] for name in present}


class ReplayBuffer:
    """Never holds more than ``capacity`` groups; iterates in the order of storing.

    Args:
        capacity: the most groups.
        victim: the place of the group that leaves, given one group too many, oldest first; the first in where
            it is left out.
    """

    def __init__(self, capacity: int, victim: Callable[[Sequence[StoredGroup]], int] | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"the capacity of a replay buffer is {capacity}; it must be at least 1")
        self.capacity = capacity
        self._victim = victim
        self._groups: list[StoredGroup] = []

    def add(self, group: RolloutGroup, reuse_count: int = 0) -> StoredGroup | None:
        """Store a copy of a group, drawn so often so far; return the one that had to leave, if any."""
        self._groups.append(StoredGroup.of(group, reuse_count))
        if len(self._groups) <= self.capacity:
            return None
        return self._groups.pop(0 if self._victim is None else self._victim(self._groups))

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
