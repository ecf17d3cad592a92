"""PrivLeak: what MUSE asks about whole texts, forgotten and held out, and their scores.

PrivLeak itself is `roc.privleak` of their AUCs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recipe.rerule.evaluation.engine.requests import Answers, Likelihood, PromptText, Request
from recipe.rerule.evaluation.statistics.roc import min_k_score
from recipe.rerule.evaluation.statistics.samples import Array


def requests(forget: Sequence[str], holdout: Sequence[str]) -> list[Request]:
    """The likelihood of each text from the beginning, after BOS alone."""
    start = PromptText(({"role": "user", "content": ""},), raw=True)
    texts = {"forget": forget, "holdout": holdout}
    return [
        Likelihood(f"privleak/{part}/{number}", start, text)
        for part, members in texts.items()
        for number, text in enumerate(members)
    ]


def scores(answers: Answers) -> dict[str, Array]:
    """Min-40 % scores of "forget" and "holdout" texts; their end-of-sequence tokens do not count."""
    parts: dict[str, list[float]] = {"forget": [], "holdout": []}
    for name, answer in answers.items():
        if name.startswith("privleak/"):
            parts[name.split("/")[1]].append(min_k_score(answer.log_probs[:-1]))
    return {part: np.array(found) for part, found in parts.items()}
