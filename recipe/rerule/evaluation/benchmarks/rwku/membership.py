"""Membership inference as RWKU reports it: mean scores of texts on the target (members) and of others.

Whole texts are scored, each token given those before it and BOS. So a text is the answer to the empty raw
prompt, which is BOS alone (a tokenizer that adds none cannot be asked this way), and the end-of-sequence
token that a `Likelihood` measures too is left out: RWKU has none. Tokenizers made with sentencepiece put a
space before a text and not before an answer, so that with them the first token may be another one than in
RWKU's code.

RWKU's code also prints Min-K%++, which needs the whole distribution at each token; an engine that gives the
log-probabilities of a text's own tokens cannot have it, and it is not here.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recipe.rerule.evaluation.engine.requests import Answer, Answers, Likelihood, PromptText, Request
from recipe.rerule.evaluation.statistics.roc import min_k_score
from recipe.rerule.evaluation.statistics.samples import Samples, Statistic, mean_of

Record = dict[str, Any]

SHARES = (0.2, 0.4)
"""Of Min-K%: RWKU prints 20 %, MUSE's PrivLeak uses 40 %."""
_BOS_ALONE = PromptText(({"role": "user", "content": ""},), raw=True)


def requests(texts: Mapping[str, Sequence[str]]) -> list[Request]:
    """A likelihood a text, of sets of texts by name. Raises ValueError for an empty text or set."""
    for name, members in texts.items():
        if not members or not all(text.strip() for text in members):
            raise ValueError(f"membership texts {name}: each set needs texts, and none may be empty")
    return [
        Likelihood(_request_id(name, number), _BOS_ALONE, text)
        for name, members in texts.items()
        for number, text in enumerate(members)
    ]


def records(texts: Mapping[str, Sequence[str]], answers: Answers) -> list[Record]:
    """A record a text, in order: set, index in the set, loss, zlib, min_20, min_40 (all in nats; see below).

    Raises ValueError where an answer is missing, or its log-likelihoods are not numbers.
    """
    return [
        {"set": name, "index": number, **scores(text, _token_log_probs(answers, name, number))}
        for name, members in texts.items()
        for number, text in enumerate(members)
    ]


def scores(text: str, log_probs: Sequence[float]) -> dict[str, float]:
    """Scores of a text from the log-probability of each of its tokens; all are lower for well-known text.

    loss: mean negative log-likelihood a token (RWKU's code prints it with the other sign). zlib: loss over
    the bytes that zlib packs the text into. min_20, min_40: `min_k_score` of these shares of the tokens, of
    one token where RWKU's rounding down leaves none.
    """
    loss = -float(np.mean(log_probs))
    packed = len(zlib.compress(text.encode("utf-8")))
    lowest = {f"min_{round(100 * share)}": min_k_score(log_probs, share) for share in SHARES}
    return {"loss": loss, "zlib": loss / packed, **lowest}


def samples(records: Sequence[Record]) -> Samples:
    """The scores of every set. Raises ValueError where one text of a set occurs twice."""
    counts = Counter((record["set"], record["index"]) for record in records)
    for (name, index), times in counts.items():
        if times > 1:
            raise ValueError(f"{times} membership records of one text (set {name}, index {index})")
    names = dict.fromkeys(record["set"] for record in records)
    quantities = ("loss", "zlib", *(f"min_{round(100 * share)}" for share in SHARES))
    return {
        name: {
            quantity: np.array([record[quantity] for record in records if record["set"] == name], np.float64)
            for quantity in quantities
        }
        for name in names
    }


def statistics(samples: Samples) -> dict[str, Statistic]:
    """The mean score of every set: "mia/forget/loss" and so on."""
    return {
        f"mia/{name}/{quantity}": mean_of(quantity, [name])
        for name, quantities in samples.items()
        for quantity in quantities
    }


def _request_id(name: str, number: int) -> str:
    return f"membership/{name}/{number}"


def _token_log_probs(answers: Answers, name: str, number: int) -> tuple[float, ...]:
    answer = answers.get(_request_id(name, number), Answer())
    found = answer.log_probs[:-1]
    if not found or not np.all(np.isfinite(found)):
        raise ValueError(f"no log-likelihoods, or not all numbers, of membership text {name} {number}")
    return found
