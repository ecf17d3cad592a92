"""How much of the right answer a model completes by itself: asked and scored alike for every benchmark.

The model is shown the prompt of the probe and the right answer. Each token of the answer is judged given the
right ones before it, by its rank. The end of the turn does not count: open-unlearning leaves the last token
out, which is that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from recipe.rerule.evaluation.engine.requests import Answer, Likelihood, PromptText
from recipe.rerule.evaluation.statistics.memorisation import exact_memorization, extraction_strength
from recipe.rerule.evaluation.statistics.samples import Array

MEMORISATION = ("extraction_strength", "extraction_strength_definition", "exact_memorization")
"""The first is open-unlearning's, which is never below 1 / T for T tokens; the second is the definition
(Carlini et al., arXiv:2012.07805)."""


def right_answer(name: str, prompt: PromptText, answer: str) -> Likelihood:
    """The request for the ranks of an answer's tokens; behind a suffix that ends in a word it is spaced."""
    spaced = bool(prompt.suffix) and not (prompt.suffix[-1].isspace() or answer[:1].isspace())
    return Likelihood(name, prompt, f" {answer}" if spaced else answer)


def memorised(answer: Answer | None, most: int | None = None) -> dict[str, float]:
    """MEMORISATION of an answer by its first `most` tokens; {} of none, and of one without a token."""
    ranks = () if answer is None else answer.ranks[:-1][:most]
    if not ranks:
        return {}
    return {
        "extraction_strength": extraction_strength(ranks, "open_unlearning"),
        "extraction_strength_definition": extraction_strength(ranks),
        "exact_memorization": exact_memorization(ranks),
    }


def of_all(
    records: Sequence[Mapping[str, Any]], quantities: Iterable[str] = MEMORISATION
) -> dict[str, Array]:
    """The quantities that every record has."""
    return {
        quantity: np.array([record[quantity] for record in records], dtype=float)
        for quantity in quantities
        if records and all(quantity in record for record in records)
    }
