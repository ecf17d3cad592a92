"""Numbers of the ranks of an answer's tokens, against values worked out by hand and their definitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.rerule.evaluation.engine.requests import Answer
from recipe.rerule.evaluation.metrics import exact_memorization, extraction_strength, memorised

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
    assert memorised(Answer(ranks=(*ranks, 9)))["extraction_strength"] == open_unlearning


@given(RANKS)
def test_extraction_strength_is_one_minus_the_shortest_prefix(ranks: list[int]) -> None:
    length = len(ranks)
    by_definition = min(k for k in range(length + 1) if all(rank == 1 for rank in ranks[k:]))
    assert extraction_strength(ranks) == pytest.approx(1 - by_definition / length, abs=1e-15)
    # open-unlearning looks for the prefix among those that leave a token.
    looked_at = (k for k in range(length) if all(rank == 1 for rank in ranks[k:]))
    by_its_code = 1 - next(looked_at, length - 1) / length
    found = memorised(Answer(ranks=(*ranks, 9)))
    assert found["extraction_strength"] == pytest.approx(by_its_code, abs=1e-15)
    assert found["exact_memorization"] == ranks.count(1) / length
    assert extraction_strength(ranks) <= exact_memorization(ranks)
