"""Membership inference: scores of texts, how well they tell members from others, and PrivLeak."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recipe.rerule.evaluation.logs.open_unlearning import EPSILON
from recipe.rerule.evaluation.statistics.samples import Array

MIN_K = 0.4
"""Share of tokens that Min-K% averages over for PrivLeak."""
UNTRAINED_AUC = 0.5
"""Reference AUC of open-unlearning where no retained model's log is given: chance."""


def min_k_score(log_probs: Sequence[float], share: float = MIN_K) -> float:
    """Min-K% (Shi et al., arXiv:2310.16789): minus the mean of the least likely `share` of a text's tokens.

    At least one token counts; a text without tokens scores 0. The higher, the less like training data.
    """
    if not log_probs:
        return 0.0
    lowest = np.sort(np.asarray(log_probs, dtype=float))[: max(1, int(len(log_probs) * share))]
    return float(-lowest.mean())


def auc(low: Array, high: Array) -> float:
    """Area under the ROC curve: how often a value of `high` exceeds one of `low`, ties counting one half.

    Equals the Mann-Whitney statistic divided by the number of pairs.
    """
    ordered = np.sort(low)
    below = np.searchsorted(ordered, high, side="left")
    below_or_equal = np.searchsorted(ordered, high, side="right")
    return float((below + below_or_equal).sum() / (2 * low.size * high.size))


def privleak(model_auc: float, reference_auc: float, epsilon: float = EPSILON) -> float:
    """PrivLeak (Shi et al., arXiv:2407.06460), in percent: how far the AUC is from the retained model's.

    AUCs as of `auc(forget, holdout)`, over 0.5 where the forget texts look trained on. The AUC of its
    authors is one minus that, hence the complements. Negative: under-unlearned; positive: over-unlearned.
    """
    ours, reference = 1 - model_auc, 1 - reference_auc
    return (ours - reference) / (reference + epsilon) * 100
