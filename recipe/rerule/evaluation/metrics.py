"""Metrics of single answers and texts that several benchmarks and attacks share: memorisation, membership."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe.rerule.evaluation.engine.requests import Answer, Likelihood, PromptText, Request
from recipe.rerule.io import read_json

Array = NDArray[np.float64]
MEMORISATION = ("extraction_strength", "extraction_strength_definition", "exact_memorization")
"""The first is open-unlearning's, which is never below 1 / T for T tokens; the second is the definition
(Carlini et al., arXiv:2012.07805)."""
EPSILON = 1e-10
"""What open-unlearning adds to denominators."""
UNTRAINED_AUC = 0.5
"""Reference AUC of open-unlearning where no retained model's log is given: chance."""


def extraction_strength(ranks: Sequence[int]) -> float:
    """The share of an answer that the model completes by itself (Carlini et al., arXiv:2012.07805).

    1 - k / T, where k is the shortest prefix of the T tokens behind which every token has rank 1. An answer
    without an error scores 1, and one whose last token is wrong scores 0.

    `ranks`: of the answer's tokens, at least one, in their order; 1 where the right token alone is the most
    likely.
    """
    prefix = max((place for place, rank in enumerate(ranks, 1) if rank > 1), default=0)
    return (len(ranks) - prefix) / len(ranks)


def exact_memorization(ranks: Sequence[int]) -> float:
    """The share of an answer's tokens, at least one, with rank 1, each given the right tokens before it."""
    return sum(rank == 1 for rank in ranks) / len(ranks)


def right_answer(name: str, prompt: PromptText, answer: str) -> Likelihood:
    """The request for the ranks of an answer's tokens; behind a suffix that ends in a word it is spaced."""
    spaced = bool(prompt.suffix) and not (prompt.suffix[-1].isspace() or answer[:1].isspace())
    return Likelihood(name, prompt, f" {answer}" if spaced else answer)


def memorised(answer: Answer | None, most: int | None = None) -> dict[str, float]:
    """MEMORISATION of an answer by its first `most` tokens; {} of none, and of one without a token.

    The end of the turn does not count: open-unlearning leaves the last token out, which is that. By its code,
    an answer whose last token is wrong scores as one whose last token alone is right.
    """
    ranks = () if answer is None else answer.ranks[:-1][:most]
    if not ranks:
        return {}
    return {
        "extraction_strength": max(extraction_strength(ranks), 1 / len(ranks)),
        "extraction_strength_definition": extraction_strength(ranks),
        "exact_memorization": exact_memorization(ranks),
    }


def texts_of(file: Path, field: str = "text") -> list[str]:
    """The texts of a JSON file: an array of texts, or of objects with `field`.

    Raises ValueError where the file, or a text in it, is missing or wrong.
    """
    if not file.is_file():
        raise ValueError(f"{file.parent}: {file.name} is missing")
    rows = read_json(file)
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{file}: holds no rows")
    texts: list[Any] = [row.get(field) if isinstance(row, dict) else row for row in rows]
    for number, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{file}: row {number}: {field} is missing, empty or no str")
    return texts


def whole_text(name: str, text: str) -> Request:
    """The request for the likelihood of a text from its beginning, after BOS alone."""
    return Likelihood(name, PromptText(({"role": "user", "content": ""},), raw=True), text)


def min_k_score(log_probs: Sequence[float], share: float) -> float:
    """Min-K% (Shi et al., arXiv:2310.16789): minus the mean of the least likely `share` of a text's tokens.

    At least one token counts. The higher, the less like training data.
    """
    lowest = np.sort(np.asarray(log_probs, dtype=float))[: max(1, int(len(log_probs) * share))]
    return float(-lowest.mean())


SHARES = (0.2, 0.4)
"""Of Min-K%, as the benchmarks use them."""
TEXT_SCORES = ("loss", "zlib", *(f"min_{round(100 * share)}" for share in SHARES))


def text_scores(text: str, log_probs: Sequence[float]) -> dict[str, float]:
    """Scores of a text from the log-probability of each of its tokens; all are lower for well-known text.

    loss: mean negative log-likelihood a token, in nats. zlib:
    loss over the bytes that zlib packs the text into. min_20, min_40: `min_k_score` of these shares of the
    tokens, of one token where rounding down leaves none.
    """
    loss = -float(np.mean(log_probs))
    packed = len(zlib.compress(text.encode("utf-8")))
    lowest = (min_k_score(log_probs, share) for share in SHARES)
    return dict(zip(TEXT_SCORES, (loss, loss / packed, *lowest), strict=True))


def auc(low: Sequence[float], high: Sequence[float]) -> float:
    """Area under the ROC curve: how often a value of `high` exceeds one of `low`, ties counting one half.

    Equals the Mann-Whitney statistic divided by the number of pairs.
    """
    ordered = np.sort(low)
    below = np.searchsorted(ordered, high, side="left")
    below_or_equal = np.searchsorted(ordered, high, side="right")
    return float((below + below_or_equal).sum() / (2 * len(low) * len(high)))


def privleak(model_auc: float, reference_auc: float) -> float:
    """PrivLeak (Shi et al., arXiv:2407.06460), in percent: how far the AUC is from the retained model's.

    AUCs as of `auc(forget, holdout)`, over 0.5 where the forget texts look trained on. The AUC of its authors
    is one minus that, hence the complements. Negative: under-unlearned; positive: over-unlearned.
    """
    ours, reference = 1 - model_auc, 1 - reference_auc
    return (ours - reference) / (reference + EPSILON) * 100
