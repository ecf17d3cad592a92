"""Eviction: which group leaves a full buffer, and which ones leave by age or use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .config import ReplayConfig
from .stored import StoredGroup


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
        return min(range(len(groups)), key=lambda place: (groups[place].step, -groups[place].draws, place))


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
        return group.draws >= self.draws


def build_eviction(config: ReplayConfig) -> Eviction:
    """The eviction rule that the settings ask for."""
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
