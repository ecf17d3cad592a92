"""Numbers of the ranks of an answer's tokens, against values worked out by hand and their definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.rerule.evaluation.metrics import exact_memorization, extraction_strength

RANKS = st.lists(st.integers(1, 4), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("ranks", "defined", "open_unlearning"),
    [
        ([1, 1, 1, 1, 1], 1.0, 1.0),
        ([2, 3, 9, 2, 7], 0.0, 0.2),
        ([2, 2, 2, 2, 1], 0.2, 0.2),
        ([2, 1, 1, 1, 1], 0.8, 0.8),
        ([1, 1, 2, 1, 1], 0.4, 0.4),
        ([1, 1, 1, 1, 2], 0.0, 0.2),
        ([1], 1.0, 1.0),
        ([2], 0.0, 1.0),
    ],
)
def test_extraction_strength_by_hand(ranks: list[int], defined: float, open_unlearning: float) -> None:
    assert extraction_strength(ranks) == defined
    assert extraction_strength(ranks, "open_unlearning") == open_unlearning


@given(RANKS)
def test_extraction_strength_is_one_minus_the_shortest_prefix(ranks: list[int]) -> None:
    length = len(ranks)
    by_definition = min(k for k in range(length + 1) if all(rank == 1 for rank in ranks[k:]))
    assert extraction_strength(ranks) == pytest.approx(1 - by_definition / length, abs=1e-15)
    # open-unlearning looks for the prefix among those that leave a token.
    looked_at = (k for k in range(length) if all(rank == 1 for rank in ranks[k:]))
    by_its_code = 1 - next(looked_at, length - 1) / length
    assert extraction_strength(ranks, "open_unlearning") == pytest.approx(by_its_code, abs=1e-15)
    assert extraction_strength(ranks) <= exact_memorization(ranks)


def test_exact_memorization_by_hand() -> None:
    assert exact_memorization([1, 4, 1, 1]) == 0.75
    assert exact_memorization([2, 2]) == 0
    assert exact_memorization((1,)) == 1


@given(RANKS)
def test_only_whether_a_rank_is_1_counts(ranks: list[int]) -> None:
    larger = [rank if rank == 1 else rank + 90 for rank in ranks]
    assert exact_memorization(larger) == exact_memorization(ranks)
    assert extraction_strength(larger) == extraction_strength(ranks)


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (extraction_strength, ([],), "no ranks"),
        (extraction_strength, ([0, 1],), "a rank is 0"),
        (extraction_strength, ([1], "carlini"), "convention is 'carlini'"),
        (exact_memorization, ([],), "no ranks"),
        (exact_memorization, ([0],), "a rank is 0"),
    ],
)
def test_what_is_refused(function: Callable[..., Any], given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(*given)
