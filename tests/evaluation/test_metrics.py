"""Extraction strength against its definition; what tasks compute by hand proves the other metrics."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.evaluation.engine.requests import Answer
from recipe.rerule.evaluation.metrics import memorised


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=30))
def test_extraction_strength_is_one_minus_the_shortest_prefix(ranks: list[int]) -> None:
    """open-unlearning looks for the prefix among those that leave a token. The last rank is the end's."""
    length = len(ranks)
    right = [k for k in range(length + 1) if all(rank == 1 for rank in ranks[k:])]
    assert memorised(Answer(ranks=(*ranks, 9))) == pytest.approx(
        {
            "extraction_strength": 1 - min(right[0], length - 1) / length,
            "extraction_strength_definition": 1 - right[0] / length,
            "exact_memorization": ranks.count(1) / length,
        },
        abs=1e-15,
    )
