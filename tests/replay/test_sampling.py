from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import StoredGroup
from recipe.rerule.replay.buffer import sampled
from tests.replay.groups import make_group


def stored(count: int) -> list[StoredGroup]:
    """Groups whose prompt indices are their places."""
    return [StoredGroup.of(make_group(place)) for place in range(count)]


def places(drawn: Sequence[StoredGroup]) -> tuple[int, ...]:
    return tuple(group.prompt_index for group in drawn)


@pytest.mark.parametrize("rule", ["recent", "uniform"])
@settings(deadline=None)
@given(count=st.integers(0, 12), share=st.floats(0, 1), seed=st.integers())
def test_draw_has_the_right_size_and_no_group_twice(rule: Any, count: int, share: float, seed: int) -> None:
    groups = stored(count)
    k = int(share * len(groups))
    first, second = random.Random(seed), random.Random(seed)
    for _ in range(3):
        drawn = sampled(groups, k, rule, first)
        assert len(drawn) == k == len(set(places(drawn)))
        assert all(any(group is one for one in groups) for group in drawn)
        assert drawn == sampled(groups, k, rule, second)  # the same generator state, the same draw


def test_recent_takes_the_newest_first_and_nothing_from_chance() -> None:
    groups, rng = stored(5), random.Random(0)
    assert places(sampled(groups, 3, "recent", rng)) == (4, 3, 2)
    assert places(sampled(groups, 5, "recent", rng)) == (4, 3, 2, 1, 0)
    assert sampled(groups, 0, "recent", rng) == []
    assert rng.getstate() == random.Random(0).getstate()


def test_uniform_draws_every_ordered_pair_alike() -> None:
    groups, rng, draws = stored(4), random.Random(0), 6000
    counts = Counter(places(sampled(groups, 2, "uniform", rng)) for _ in range(draws))
    pairs = list(itertools.permutations(range(4), 2))
    assert set(counts) == set(pairs)
    mean = draws / len(pairs)
    chi_square = sum((counts[pair] - mean) ** 2 / mean for pair in pairs)
    assert chi_square < 31.26  # 11 degrees of freedom, 1 in 1000
