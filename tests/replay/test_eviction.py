from __future__ import annotations

import pytest

from recipe.rerule.replay import ReplayConfig, StoredGroup
from recipe.rerule.replay.buffer import (
    FifoEviction,
    ReuseLimit,
    SignalEviction,
    StalenessEviction,
    StalenessLimit,
    build_eviction,
    build_limits,
)
from tests.replay.groups import make_group


def stored(step: int = 1, draws: int = 0, signal: float = 1.0) -> StoredGroup:
    return StoredGroup.of(make_group(step=step, advantages=[signal, -signal]), draws)


def test_fifo_lets_the_oldest_place_go_whatever_it_holds() -> None:
    assert FifoEviction().victim([stored(step=5, signal=9.0), stored(step=1), stored(step=2)]) == 0


@pytest.mark.parametrize(
    ("groups", "victim"),
    [
        ([stored(step=3), stored(step=2), stored(step=4)], 1),
        ([stored(step=2, draws=1), stored(step=2, draws=4), stored(step=2, draws=2)], 1),  # most reused
        ([stored(step=2, draws=9), stored(step=1, draws=0)], 1),  # age before use
        ([stored(step=4), stored(step=2, draws=3), stored(step=2, draws=3)], 1),  # then the first in
    ],
)
def test_staleness_lets_the_stalest_go_then_the_most_reused_then_the_first(
    groups: list[StoredGroup], victim: int
) -> None:
    assert StalenessEviction().victim(groups) == victim


@pytest.mark.parametrize(
    ("signals", "victim"),
    [([0.5, 0.25, 1.0], 1), ([0.5, 0.0, 0.0], 1), ([0.5, 0.5], 0), ([-2.0, 1.0], 1)],
)
def test_signal_lets_the_least_magnitude_go_then_the_first(signals: list[float], victim: int) -> None:
    assert SignalEviction().victim([stored(signal=signal) for signal in signals]) == victim


def test_group_as_old_as_the_staleness_limit_stays() -> None:
    limit = StalenessLimit(3)
    assert [limit.exceeded(stored(step=5), step) for step in (5, 7, 8, 9)] == [False, False, False, True]
    assert StalenessLimit(0).exceeded(stored(step=5), 6)
    assert not StalenessLimit(0).exceeded(stored(step=5), 5)


def test_group_drawn_as_often_as_the_reuse_limit_leaves() -> None:
    limit = ReuseLimit(2)
    assert [limit.exceeded(stored(draws=draws), 1) for draws in (0, 1, 2, 3)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("name", "rule"),
    [("fifo", FifoEviction()), ("staleness", StalenessEviction()), ("signal", SignalEviction())],
)
def test_settings_choose_the_eviction(name: str, rule: object) -> None:
    assert build_eviction(ReplayConfig(eviction=name)) == rule  # type: ignore[arg-type]


def test_settings_choose_the_limits_and_the_names_of_departures() -> None:
    assert build_limits(ReplayConfig()) == {}
    assert build_limits(ReplayConfig(max_staleness=0)) == {"staleness": StalenessLimit(0)}
    assert build_limits(ReplayConfig(max_reuse=4)) == {"reuse": ReuseLimit(4)}
    both = build_limits(ReplayConfig(max_staleness=7, max_reuse=4))
    assert both == {"staleness": StalenessLimit(7), "reuse": ReuseLimit(4)}
