"""The replay buffer: stored groups up to a fixed number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from .eviction import Eviction, FifoEviction
from .group import RolloutGroup
from .stored import StoredGroup


class ReplayBuffer:
    """Never holds more than ``capacity`` groups; iterates in the order of storing."""

    def __init__(self, capacity: int, eviction: Eviction | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"the capacity of a replay buffer is {capacity}; it must be at least 1")
        self.capacity = capacity
        self._eviction = eviction or FifoEviction()
        self._groups: list[StoredGroup] = []

    def add(self, group: RolloutGroup, draws: int = 0) -> StoredGroup | None:
        """Store a copy of a group, drawn ``draws`` times so far; return the one that had to leave, if any."""
        self._groups.append(StoredGroup.of(group, draws))
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
