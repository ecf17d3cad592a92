from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import ReplayConfig, StoredGroup
from recipe.rerule.replay.selection import (
    HighestSampler,
    PrioritizedSampler,
    RecentSampler,
    Sampler,
    UniformSampler,
    build_sampler,
)
from tests.replay.groups import make_group


def stored(
    signals: Sequence[float], steps: Sequence[int] | None = None, uses: Sequence[int] | None = None
) -> list[StoredGroup]:
    """One group for each signal; prompt indices are places."""
    facts = zip(signals, steps or [1] * len(signals), uses or [0] * len(signals), strict=True)
    return [
        StoredGroup.of(make_group(place, step, advantages=[signal, -signal]), count)
        for place, (signal, step, count) in enumerate(facts)
    ]


def places(drawn: Sequence[StoredGroup]) -> tuple[int, ...]:
    return tuple(group.prompt_index for group in drawn)


SAMPLERS: dict[str, Callable[[random.Random], Sampler]] = {
    "uniform": UniformSampler,
    "recent": lambda rng: RecentSampler(),
    "prioritized": lambda rng: PrioritizedSampler(2.0, rng),
    "highest": lambda rng: HighestSampler(2.0, 1.0),
}


@pytest.mark.parametrize("name", SAMPLERS)
@settings(deadline=None)
@given(
    signals=st.lists(st.sampled_from([0.0, 0.5, 2.0]), max_size=12), share=st.floats(0, 1), seed=st.integers()
)
def test_draw_has_the_right_size_and_no_group_twice(
    name: str, signals: list[float], share: float, seed: int
) -> None:
    groups = stored(signals)
    k = int(share * len(groups))
    first, second = (SAMPLERS[name](random.Random(seed)) for _ in range(2))
    for _ in range(3):
        drawn = first.sample(groups, k, step=4)
        assert len(drawn) == k == len(set(places(drawn)))
        assert all(any(group is one for one in groups) for group in drawn)
        assert drawn == second.sample(groups, k, step=4)  # the same generator state, the same draw


def test_recent_takes_the_newest_first() -> None:
    groups = stored([1.0] * 5)
    assert places(RecentSampler().sample(groups, 3, step=1)) == (4, 3, 2)
    assert places(RecentSampler().sample(groups, 5, step=1)) == (4, 3, 2, 1, 0)
    assert RecentSampler().sample(groups, 0, step=1) == []


def chi_square(counts: Counter[tuple[int, ...]], probabilities: dict[tuple[int, ...], float]) -> float:
    draws = sum(counts.values())
    assert {outcome for outcome, chance in probabilities.items() if chance == 0}.isdisjoint(counts)
    possible = {outcome: chance * draws for outcome, chance in probabilities.items() if chance > 0}
    return sum((counts[outcome] - mean) ** 2 / mean for outcome, mean in possible.items())


def successive(weights: Sequence[float], k: int) -> dict[tuple[int, ...], float]:
    """Chance of each ordered draw of k, one after the other in proportion to weight, without replacement."""
    chances = {}
    for outcome in itertools.permutations(range(len(weights)), k):
        chance, left = 1.0, sum(weights)
        for place in outcome:
            chance *= weights[place] / left
            left -= weights[place]
        chances[outcome] = chance
    return chances


def test_successive_sampling_by_hand() -> None:
    chances = successive([1.0, 2.0, 3.0], 2)
    assert chances[0, 1] == pytest.approx(1 / 6 * 2 / 5)
    assert chances[2, 1] == pytest.approx(3 / 6 * 2 / 3)
    assert sum(chances.values()) == pytest.approx(1.0)


def test_uniform_draws_every_ordered_pair_alike() -> None:
    groups = stored([0.0, 1.0, 5.0, 0.1])
    sampler = UniformSampler(random.Random(0))
    counts = Counter(places(sampler.sample(groups, 2, step=9)) for _ in range(6000))
    assert chi_square(counts, successive([1.0] * 4, 2)) < 31.26  # 11 degrees of freedom, 1 in 1000


@pytest.mark.parametrize(
    ("signals", "steps", "step", "half_life", "weights"),
    [
        ([1.0, 2.0, 0.5, 4.0], [1, 1, 1, 1], 1, 10.0, [1.0, 2.0, 0.5, 4.0]),
        ([1.0, 1.0, 1.0, 1.0], [1, 2, 3, 4], 4, 1.0, [1 / 8, 1 / 4, 1 / 2, 1.0]),
        ([4.0, 1.0, 2.0, 1.0], [1, 5, 3, 4], 5, 2.0, [1.0, 1.0, 1.0, 0.5**0.5]),
    ],
)
def test_prioritized_draws_with_the_chances_of_successive_sampling(
    signals: list[float], steps: list[int], step: int, half_life: float, weights: list[float]
) -> None:
    groups = stored(signals, steps)
    sampler = PrioritizedSampler(half_life, random.Random(1))
    counts = Counter(places(sampler.sample(groups, 2, step)) for _ in range(20_000))
    assert chi_square(counts, successive(weights, 2)) < 31.26  # 11 degrees of freedom, 1 in 1000


def test_uses_make_a_draw_less_likely() -> None:
    """0.5^(uses / 2): never 1, twice 1/2, four times 1/4, and once 0.5^0.5; the age counts beside it."""
    groups = stored([1.0, 1.0, 4.0, 1.0], [3, 3, 1, 3], [0, 2, 4, 1])
    weights = [1.0, 0.5, 4 / 4 / 2, 0.5**0.5]
    sampler = PrioritizedSampler(2.0, random.Random(3), use_half_life=2.0)
    counts = Counter(places(sampler.sample(groups, 2, step=3)) for _ in range(20_000))
    assert chi_square(counts, successive(weights, 2)) < 31.26  # 11 degrees of freedom, 1 in 1000


def test_the_highest_priorities_by_hand() -> None:
    """At step 9: 0.8 is two half-lives of 4 steps old; 1.0 was used once and is a quarter of one old."""
    groups = stored([0.8, 0.9, 1.0, 0.3], [1, 5, 8, 8], [0, 0, 1, 0])
    # 0.8 / 4 = 0.2; 0.9 / 2 = 0.45; 1.0 / 2 x 2^-0.25 = 0.42; 0.3 x 2^-0.25 = 0.25.
    assert places(HighestSampler(4.0, 1.0).sample(groups, 4, step=9)) == (1, 2, 3, 0)
    # Without uses 1.0 x 2^-0.25 = 0.84; with neither, by signal.
    assert places(HighestSampler(4.0).sample(groups, 2, step=9)) == (2, 1)
    assert places(HighestSampler(math.inf).sample(groups, 4, step=9)) == (2, 1, 0, 3)
    assert HighestSampler(4.0, 1.0).sample(groups, 0, step=9) == []


def test_of_equal_priorities_the_newest_is_taken_and_of_one_step_the_last_stored() -> None:
    groups = stored([0.0, 1.0, 2.0, 1.0, 0.0, 1.0], [1, 1, 1, 2, 2, 2])
    assert places(HighestSampler(math.inf).sample(groups, 6, step=2)) == (2, 5, 3, 1, 4, 0)


@settings(deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.integers(1, 4), st.integers(0, 3)), max_size=12
    ),
    share=st.floats(0, 1),
)
def test_nothing_left_has_a_higher_priority_than_what_is_taken(
    rows: list[tuple[float, int, int]], share: float
) -> None:
    """Half-lives of 1 keep all priorities exact: signal / 2^(age + uses)."""
    rows.sort(key=lambda row: row[1])
    groups = stored(*zip(*rows, strict=True)) if rows else []
    ranks = {place: (row[0] / 2 ** (5 - row[1] + row[2]), row[1], place) for place, row in enumerate(rows)}
    taken = places(HighestSampler(1.0, 1.0).sample(groups, int(share * len(groups)), step=5))
    assert list(taken) == sorted(ranks, key=lambda place: ranks[place], reverse=True)[: len(taken)]


def test_groups_without_priority_come_last_in_random_order() -> None:
    groups = stored([0.0, 1.0, 0.0, 3.0, 0.0])
    sampler = PrioritizedSampler(10.0, random.Random(4))
    draws = [places(sampler.sample(groups, 4, step=1)) for _ in range(6000)]
    heads = Counter(draw[:2] for draw in draws)
    assert chi_square(heads, {(1, 3): 1 / 4, (3, 1): 3 / 4}) < 10.83  # 1 degree of freedom
    tails = Counter(draw[2:] for draw in draws)
    pairs = dict.fromkeys(itertools.permutations([0, 2, 4], 2), 1 / 6)
    assert set(tails) == set(pairs)
    assert chi_square(tails, pairs) < 20.52  # 5 degrees of freedom


def test_prioritized_takes_one_number_a_group_whatever_it_draws() -> None:
    reference, rng = random.Random(7), random.Random(7)
    PrioritizedSampler(1.0, rng).sample(stored([0.0, 1.0, 2.0]), 1, step=1)
    for _ in range(3):
        reference.random()
    assert rng.getstate() == reference.getstate()


def test_settings_choose_the_sampler() -> None:
    rng = random.Random(0)
    assert build_sampler(ReplayConfig(), rng) == RecentSampler()
    assert build_sampler(ReplayConfig(sampling="uniform"), rng) == UniformSampler(rng)
    chosen = build_sampler(ReplayConfig(sampling="prioritized", priority_half_life=3.0), rng)
    assert chosen == PrioritizedSampler(3.0, rng)
    by_use = {"priority_half_life": 3.0, "priority_use_half_life": 2.0}
    chosen = build_sampler(ReplayConfig(sampling="prioritized", **by_use), rng)
    assert chosen == PrioritizedSampler(3.0, rng, 2.0)
    assert build_sampler(ReplayConfig(sampling="highest", **by_use), rng) == HighestSampler(3.0, 2.0)
    assert build_sampler(ReplayConfig(sampling="highest"), rng) == HighestSampler(10.0, None)
