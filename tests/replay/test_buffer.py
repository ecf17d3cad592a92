"""The parts of the buffer: stored groups, thresholds, what is admitted and sampled, and the gate."""

import dataclasses
import gc
import itertools
import math
import random
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import (
    Replay,
    ReplayConfig,
    RolloutGroup,
    StoredGroup,
    Threshold,
    is_hard,
)
from recipe.rerule.replay.buffer import admitted, sampled
from tests.replay.groups import contents, keys, make_group
from tests.replay.own_rules import NewestLeaves


def of_mean(*means: float, signal: Sequence[bool] | None = None) -> list[RolloutGroup]:
    """Groups with these means; those without signal have no advantage at all."""
    signals = signal or [True] * len(means)
    return [
        make_group(index, rewards=[mean, mean], advantages=[1.0, -1.0] if has else [0.0, 0.0])
        for index, (mean, has) in enumerate(zip(means, signals, strict=True))
    ]


def numbers(groups: Sequence[RolloutGroup | StoredGroup]) -> tuple[int, ...]:
    return tuple(group.prompt_index for group in groups)


def is_likely(found: list[tuple[int, ...]], outcomes: list[tuple[int, ...]], bound: float) -> bool:
    """Whether every outcome is equally likely; the bound on chi squared fails once in a thousand seeds."""
    counts, expected = Counter(found), len(found) / len(outcomes)
    assert set(counts) == set(outcomes)
    return sum((counts[outcome] - expected) ** 2 / expected for outcome in outcomes) < bound


def test_facts_of_a_stored_group_by_hand() -> None:
    group = make_group(7, 4, [0.0, 1.0, 1.0], [2, 1, 1], advantages=[-1.0, 0.5, 0.0], side="retain")
    stored = StoredGroup.of(group, reuse_count=3)
    assert (stored.prompt_index, stored.side, stored.mode, stored.step) == (7, "retain", "qa", 4)
    assert (stored.n, stored.tokens, stored.has_ref) == (3, 4, True)
    assert stored.mean_reward == pytest.approx(2 / 3)
    assert stored.signal == (1 + 1 + 0.5 + 0) / 4
    assert (stored.reuse_count, StoredGroup.of(group).reuse_count) == (3, 0)
    # 3 prompt tokens, 3 lengths and rewards, 4 response tokens with 4 four-byte planes and a mask.
    assert stored.nbytes == 4 * 3 + 2 * 4 * 3 + 4 * (4 * 4 + 1) == group.nbytes


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any),
    prompt_length=st.integers(1, 7),
    with_ref=st.booleans(),
)
def test_a_group_comes_back_bit_for_bit(lengths: list[int], prompt_length: int, with_ref: bool) -> None:
    group = make_group(0, 1, [0.25] * len(lengths), lengths, prompt_length, with_ref=with_ref)
    group = dataclasses.replace(group, response_mask=torch.arange(sum(lengths)) % 3 != 1)
    stored = StoredGroup.of(group)
    assert contents(stored.group()) == contents(group)
    assert stored.nbytes == group.nbytes


def test_a_full_buffer_costs_at_most_1_2_of_its_tensors() -> None:
    """1,200 groups x 8 rollouts, as of TOFU; all the memory Python allocates for the replay but its log."""
    rng = random.Random(0)
    steps = [
        [make_group(i, step, [i / 16] * 8, rng.choices(range(15, 46), k=8), 20) for i in range(16)]
        for step in range(1, 77)
    ]
    # The first use of numpy.quantile imports modules of 0.8 MB, which are no memory of the buffer.
    Replay(ReplayConfig(admission="all")).offer(steps[0], 1)
    replay = Replay(ReplayConfig(admission="all", require_signal=False))
    gc.collect()
    tracemalloc.start()
    try:
        for step, groups in enumerate(steps, start=1):
            replay.offer(groups, step)
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(replay.buffer) == 1200
    # tracemalloc does not see what torch allocates, so nothing stored may be a tensor.
    stored = [getattr(one, name) for one in replay.buffer for name in one.__slots__]
    assert not any(isinstance(value, torch.Tensor) for value in stored)
    assert used <= 1.2 * sum(one.nbytes for one in replay.buffer)


def test_a_rule_says_who_leaves_and_may_turn_the_new_group_away() -> None:
    rules = {"admission": "all", "eviction": "tests.replay.own_rules:NewestLeaves"}
    replay = Replay(ReplayConfig(capacity=2, min_groups=2, groups_per_update=2, **rules))
    replay.offer([make_group(index) for index in range(3)], step=1)
    assert keys(replay.buffer) == [(0, 1), (1, 1)]
    (left,) = replay.log.departures
    assert (left.key, left.reason) == ((2, 1), "capacity")
    assert NewestLeaves.asked == [[(0, 1), (1, 1), (2, 1)]]


def test_a_mean_within_the_resolution_of_the_threshold_is_not_hard() -> None:
    assert not is_hard(0.6 - 1e-6, 0.6)
    assert is_hard(0.6 - 2e-6, 0.6)


@settings(deadline=None)
@given(tenths=st.lists(st.integers(0, 10), min_size=1, max_size=16), threshold=st.integers(0, 100))
def test_hard_agrees_with_exact_arithmetic(tenths: list[int], threshold: int) -> None:
    group = make_group(rewards=[reward / 10 for reward in tenths])
    exact = Fraction(sum(tenths), 10 * len(tenths)) < Fraction(threshold, 100)
    assert is_hard(group.mean_reward, threshold / 100) == exact


def quantile_of(quantile: float, window: int) -> Threshold:
    return Threshold(ReplayConfig(threshold_quantile=quantile, threshold_window=window))


def test_a_fixed_threshold_is_the_same_at_every_step_and_has_no_state() -> None:
    threshold = Threshold(ReplayConfig(threshold_rule="fixed", threshold=0.6))
    assert [threshold.update(of_mean(mean)) for mean in (0.0, 1.0)] == [0.6, 0.6]
    assert threshold.state() == []
    threshold.restore([0.1])
    assert threshold.update([]) == 0.6


def test_a_quantile_by_hand_over_a_window_that_slides() -> None:
    assert not is_hard(0.0, quantile_of(0.9, window=4).update([]))  # before any group nothing is hard
    threshold = quantile_of(0.25, window=5)
    assert threshold.update(of_mean(0.5, 0.0, 1.0)) == 0.25  # halfway between 0 and 0.5
    assert threshold.update(of_mean(0.25, 0.75)) == 0.25  # second of 0, .25, .5, .75, 1
    assert threshold.update([]) == 0.25
    assert threshold.update(of_mean(1.0, 1.0)) == 0.75  # .25, .75, 1, 1, 1 are left
    assert threshold.state() == [1.0, 0.25, 0.75, 1.0, 1.0]


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
def test_the_quantile_is_that_of_the_newest_means(
    steps: list[list[int]], quantile: float, window: int
) -> None:
    threshold, seen = quantile_of(quantile, window), [0.0]
    threshold.update(of_mean(0.0))
    for step in steps:
        means = [eighth / 8 for eighth in step]
        seen += means
        found, newest = threshold.update(of_mean(*means)), seen[-window:]
        assert found == pytest.approx(linear_quantile(newest, quantile), abs=1e-15)
        # Being hard is strict: of equal means at the quantile none is hard.
        assert sum(is_hard(mean, found) for mean in newest) <= math.ceil(quantile * (len(newest) - 1))


def test_a_restored_threshold_continues_and_a_smaller_window_keeps_the_newest() -> None:
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


def test_hard_stores_the_groups_below_the_threshold_in_order_and_all_every_group() -> None:
    offered, rng = of_mean(0.7, 0.1, 0.6, 0.5, 1.0, 0.0), random.Random(0)
    assert numbers(admitted(offered, 0.6, "hard", rng)) == (1, 3, 5)
    assert admitted(offered, 0.0, "hard", rng) == []
    assert admitted(offered, 0.6, "all", rng) == offered
    assert rng.getstate() == random.Random(0).getstate()


def test_random_stores_every_subset_alike_whatever_the_rewards() -> None:
    offered, rng = of_mean(0.0, 1.0, 0.0, 1.0, 1.0), random.Random(2)
    found = [numbers(admitted(offered, 0.6, "random", rng)) for _ in range(5000)]
    assert is_likely(found, list(itertools.combinations(range(5), 2)), bound=27.88)  # 9 degrees of freedom


def stored(groups: list[RolloutGroup], **changes: object) -> list[int]:
    """Prompts whose groups a replay of these settings stores at its first step."""
    replay = Replay(ReplayConfig.from_dict({"threshold_rule": "fixed", "threshold": 0.6, **changes}))
    replay.offer(groups, 1)
    return [key.prompt_index for key in replay.log.stored]


@settings(deadline=None)
@given(
    groups=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=7),
    quarters=st.integers(0, 4),
    require_signal=st.booleans(),
    seed=st.integers(),
)
def test_random_stores_as_many_as_the_hard_rule_and_with_signal_where_that_is_asked_for(
    groups: list[tuple[int, bool]], quarters: int, require_signal: bool, seed: int
) -> None:
    shared = {"threshold": quarters / 4, "require_signal": require_signal, "seed": seed}
    offered = of_mean(*(mean / 4 for mean, _ in groups), signal=[has for _, has in groups])
    hard, chosen = (stored(offered, admission=name, **shared) for name in ("hard", "random"))
    wanted = sum(mean < quarters and (has or not require_signal) for mean, has in groups)
    assert len(hard) == len(chosen) == wanted
    assert chosen == sorted(set(chosen))
    assert not require_signal or all(offered[place].has_signal for place in chosen)


def test_recent_takes_the_newest_first_and_nothing_from_chance() -> None:
    groups, rng = [StoredGroup.of(make_group(place)) for place in range(5)], random.Random(0)
    assert numbers(sampled(groups, 3, "recent", rng)) == (4, 3, 2)
    assert numbers(sampled(groups, 5, "recent", rng)) == (4, 3, 2, 1, 0)
    assert sampled(groups, 0, "recent", rng) == []
    assert rng.getstate() == random.Random(0).getstate()


def test_uniform_draws_every_ordered_pair_alike() -> None:
    groups, rng = [StoredGroup.of(make_group(place)) for place in range(4)], random.Random(0)
    found = [numbers(sampled(groups, 2, "uniform", rng)) for _ in range(6000)]
    assert is_likely(found, list(itertools.permutations(range(4), 2)), bound=31.26)  # 11 degrees of freedom


@pytest.mark.parametrize(("min_groups", "warmup", "first"), [(4, 15, 16), (4, 0, 4), (5, 0, None)])
def test_replay_starts_after_the_warm_up_with_enough_groups(min_groups: int, warmup: int, first: Any) -> None:
    """A group a step, of which the buffer holds four at most; what it started with may leave again."""
    sizes = {"min_groups": min_groups, "groups_per_update": 1, "capacity": max(4, min_groups)}
    replay = Replay(ReplayConfig(admission="all", warmup_steps=warmup, max_staleness=3, **sizes))
    drawn = []
    for step in range(1, 31):
        if step < 20:
            replay.offer([make_group(step, step)], step)
        drawn += [step] if replay.draw(step) else []
    assert drawn == ([] if first is None else list(range(first, 23)))
    assert replay.is_open == (first is not None)
