from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import ReplayConfig, Threshold, is_hard
from tests.replay.groups import make_group


def quantile_of(quantile: float, window: int) -> Threshold:
    return Threshold(ReplayConfig(threshold_quantile=quantile, threshold_window=window))


def of_mean(*means: float) -> list:
    return [make_group(index, rewards=[mean, mean]) for index, mean in enumerate(means)]


@pytest.mark.parametrize(
    ("rewards", "threshold", "hard"),
    [
        ([0.0, 1.0], 0.6, True),
        ([1.0, 1.0], 0.6, False),
        ([1.0, 1.0, 1.0, 0.0, 0.0], 0.6, False),  # exactly at the threshold is not hard
        ([0.6, 0.6], 0.6, False),
        ([0.7, 0.7, 0.7], 0.7, False),  # float32 0.7 is below the real 0.7
        ([1.0, 1.0], 1.0, False),
        ([1.0, 0.5], 1.0, True),
        ([0.0, 0.0], 0.0, False),
    ],
)
def test_hard_is_a_mean_strictly_below_the_threshold(
    rewards: list[float], threshold: float, hard: bool
) -> None:
    assert is_hard(make_group(rewards=rewards).mean_reward, threshold) is hard


def test_mean_within_the_resolution_of_the_threshold_is_not_hard() -> None:
    assert not is_hard(0.6 - 1e-6, 0.6)
    assert is_hard(0.6 - 2e-6, 0.6)


tenths = st.integers(min_value=0, max_value=10)


@settings(deadline=None)
@given(rewards=st.lists(tenths, min_size=1, max_size=16), threshold=st.integers(0, 100))
def test_hard_agrees_with_exact_arithmetic(rewards: list[int], threshold: int) -> None:
    group = make_group(rewards=[reward / 10 for reward in rewards])
    exact = Fraction(sum(rewards), 10 * len(rewards)) < Fraction(threshold, 100)
    assert is_hard(group.mean_reward, threshold / 100) == exact


def test_fixed_threshold_is_the_same_at_every_step_and_has_no_state() -> None:
    threshold = Threshold(ReplayConfig(threshold_rule="fixed", threshold=0.6))
    assert [threshold.update(of_mean(mean)) for mean in (0.0, 1.0)] == [0.6, 0.6]
    assert threshold.state() == []
    threshold.restore([0.1])
    assert threshold.update([]) == 0.6


def test_quantile_by_hand_over_a_window_that_slides() -> None:
    assert not is_hard(0.0, quantile_of(0.9, window=4).update([]))  # before any group nothing is hard
    threshold = quantile_of(0.25, window=5)
    assert threshold.update(of_mean(0.5, 0.0, 1.0)) == 0.25  # halfway between 0 and 0.5
    assert threshold.update(of_mean(0.25, 0.75)) == 0.25  # second of 0, .25, .5, .75, 1
    assert threshold.update([]) == 0.25
    assert threshold.update(of_mean(1.0, 1.0)) == 0.75  # .25, .75, 1, 1, 1 are left
    assert threshold.state() == [1.0, 0.25, 0.75, 1.0, 1.0]


def test_ties_at_the_lowest_mean_leave_no_group_hard() -> None:
    threshold = quantile_of(0.5, window=8)
    means = [0.25, 0.25, 0.25, 1.0]
    tau = threshold.update(of_mean(*means))
    assert tau == 0.25
    assert not any(is_hard(mean, tau) for mean in means)


def linear_quantile(values: Sequence[float], quantile: float) -> float:
    """Hyndman and Fan's type 7, written out."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * quantile
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@settings(deadline=None)
@given(
    steps=st.lists(st.lists(st.integers(0, 8), max_size=5), max_size=12),
    quantile=st.sampled_from([0.0, 0.1, 0.3, 0.4, 0.5, 0.9, 1.0]),
    window=st.integers(1, 12),
)
def test_quantile_is_that_of_the_newest_means(steps: list[list[int]], quantile: float, window: int) -> None:
    threshold = quantile_of(quantile, window=window)
    seen: list[float] = []
    for step in steps:
        means = [eighth / 8 for eighth in step]
        seen += means
        found = threshold.update(of_mean(*means))
        if seen:
            newest = seen[-window:]
            assert found == pytest.approx(linear_quantile(newest, quantile), abs=1e-15)
            assert found == np.quantile(newest, quantile)
            below = sum(is_hard(mean, found) for mean in newest)
            assert below <= math.ceil(quantile * (len(newest) - 1))


def test_restored_threshold_continues_and_a_smaller_window_keeps_the_newest() -> None:
    first = quantile_of(0.5, window=4)
    first.update(of_mean(0.0, 0.25, 0.5, 1.0))
    same, smaller = quantile_of(0.5, window=4), quantile_of(0.5, window=2)
    same.update(of_mean(0.125))
    for other in (same, smaller):
        other.restore(first.state())
    assert same.state() == [0.0, 0.25, 0.5, 1.0]
    assert smaller.state() == [0.5, 1.0]
    assert same.update(of_mean(0.0)) == first.update(of_mean(0.0)) == 0.375
    assert smaller.update(of_mean(0.0)) == 0.5
