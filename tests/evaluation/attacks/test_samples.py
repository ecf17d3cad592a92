"""The estimators of samples against values worked out by hand and brute force over all subsets."""

from __future__ import annotations

from itertools import combinations, pairwise
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.rerule.evaluation.attacks.samples import expected_max, leak_at_k

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=9)


@given(SCORES)
def test_expected_max_is_the_mean_over_all_subsets(scores: list[float]) -> None:
    found = [expected_max(scores, k) for k in range(1, len(scores) + 1)]
    wanted = [mean(map(max, combinations(scores, k))) for k in range(1, len(scores) + 1)]
    assert found == pytest.approx(wanted, abs=1e-12)
    assert found[-1] == max(scores)
    assert all(later >= earlier - 1e-12 for earlier, later in pairwise(found))


def test_expected_max_of_many_samples_neither_overflows_nor_loses_weight() -> None:
    for k in (1, 64, 500, 1000):
        assert expected_max([0.25] * 1000, k) == pytest.approx(0.25, abs=1e-12)


@pytest.mark.parametrize("samples", range(1, 8))
def test_leak_at_k_is_the_share_of_subsets_with_a_leak(samples: int) -> None:
    for leaks in range(samples + 1):
        answers = [True] * leaks + [False] * (samples - leaks)
        for k in range(1, samples + 1):
            subsets = [any(subset) for subset in combinations(answers, k)]
            assert leak_at_k(leaks, samples, k) == pytest.approx(mean(subsets), abs=1e-15)
