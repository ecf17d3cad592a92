from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import ReplayConfig, StoredGroup
from recipe.rerule.replay.selection import (
    PrioritizedSampler,
    RecentSampler,
    Sampler,
    UniformSampler,
    build_sampler,
)
from tests.replay.groups import make_group


def stored(signals: Sequence[float], steps: Sequence[int] | None = None) -> list[StoredGroup]:
    """One group for each signal; prompt indices are places."""
    steps = steps or [1] * len(signals)
    return [
        StoredGroup.of(make_group(place, step, advantages=[signal, -signal]))
        for place, (signal, step) in enumerate(zip(signals, steps, strict=True))
    ]


def places(drawn: Sequence[StoredGroup]) -> tuple[int, ...]:
    return tuple(group.prompt_index for group in drawn)


SAMPLERS: dict[str, Callable[[random.Random], Sampler]] = {
    "uniform": UniformSampler,
    "recent": lambda rng: RecentSampler(),
    "prioritized": lambda rng: PrioritizedSampler(2.0, rng),
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
