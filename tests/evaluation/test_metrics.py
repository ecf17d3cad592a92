"""Numbers of ranks and of log-probabilities, against values by hand, their definitions and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from recipe.rerule.evaluation.engine.requests import Answer
from recipe.rerule.evaluation.metrics import auc, memorised, min_k_score, privleak

SCORES = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=30)


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


@settings(deadline=None)
@given(SCORES, SCORES)
def test_auc_is_the_mann_whitney_statistic(low: list[float], high: list[float]) -> None:
    expected = mannwhitneyu(high, low).statistic / (len(low) * len(high))
    assert auc(np.array(low), np.array(high)) == pytest.approx(expected, abs=1e-12)


def test_min_k_and_privleak_by_hand() -> None:
    # 40 % of 5 tokens: the two lowest.
    assert [min_k_score(one) for one in ([-1, -5, -3, -2, -4], [-2.0], [])] == [4.5, 2.0, 0.0]
    # MUSE's AUCs are the complements: (0.2 - 0.5) / 0.5
    assert privleak(0.8, 0.5) == pytest.approx(-60)
