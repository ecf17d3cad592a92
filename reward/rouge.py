"""ROUGE-L in the conventions of the unlearning benchmarks.

| convention           | package         | statistic | tokens                                     | stemmer |
|----------------------|-----------------|-----------|--------------------------------------------|---------|
| tofu                 | `rouge_score`   | recall    | lower case, [a-z0-9]+                      | yes     |
| recall               | `rouge_score`   | recall    | lower case, [a-z0-9]+                      | no      |
| muse                 | `rouge_score`   | F1        | lower case, [a-z0-9]+                      | no      |
| muse-open-unlearning | `rouge_score`   | F1        | lower case, [a-z0-9]+                      | yes     |
| rwku                 | `rouge` 1.0.1   | recall    | "." ends a sentence, then white space;     | no      |
|                      |                 |           | case and other punctuation count           |         |

About one decision "ROUGE-L > 0.3" in nine differs between conventions, so every table names its own. Text
without Latin letters or digits has no tokens in the first four and scores 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.scoring import Score


def rouge_l(prediction: str, reference: str, convention: str) -> float:
    """ROUGE-L of `prediction` against `reference`, in [0, 1].

    Texts without a token score 0. Raises ValueError when `convention` is not one of `CONVENTIONS`.
    """
    check_convention(convention)
    return _SCORERS[convention](prediction, reference)


def check_convention(convention: str) -> None:
    """Raises ValueError, naming the valid ones, when `convention` is not one of `CONVENTIONS`."""
    if convention not in CONVENTIONS:
        raise ValueError(f"unknown ROUGE-L convention {convention!r}; choose one of {', '.join(CONVENTIONS)}")


def _recall(prediction: str, reference: str, *, stemmer: bool) -> float:
    return float(_score(prediction, reference, stemmer).recall)


def _f1(prediction: str, reference: str, *, stemmer: bool) -> float:
    return float(_score(prediction, reference, stemmer).fmeasure)


def _score(prediction: str, reference: str, stemmer: bool) -> Score:
    return _scorer(stemmer).score(target=reference, prediction=prediction)["rougeL"]


@lru_cache(maxsize=2)
def _scorer(stemmer: bool) -> RougeScorer:
    # Loads nltk, which takes over a second; `data_prep --help` needs neither.
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=stemmer)


def _rwku_recall(prediction: str, reference: str) -> float:
    """ROUGE-L recall as the package `rouge` 1.0.1 defines it: |union of the sentence pairs' LCSs| / |words|.

    Both are sets of words of the reference. Where the package raises because a text has no sentence (empty,
    or full stops alone), the result is 0. Where it exceeds Python's recursion limit, in texts of about a
    thousand words, the result is the score.
    """
    predicted, referenced = _sentences(prediction), _sentences(reference)
    if not predicted or not referenced:
        return 0.0
    matched = {word for ours in referenced for theirs in predicted for word in _lcs(ours, theirs)}
    return len(matched) / len({word for sentence in referenced for word in sentence})


def _sentences(text: str) -> list[list[str]]:
    """Words by sentence; a sentence of white space alone has the one word "", as in the package."""
    return [sentence.split() or [""] for sentence in text.split(".") if sentence]


def _lcs(xs: list[str], ys: list[str]) -> list[str]:
    """A longest common subsequence, in reverse; of several, the package's: on a tie, go back in `ys`."""
    table = _lcs_lengths(xs, ys)
    common = []
    i, j = len(xs), len(ys)
    while i and j:
        if xs[i - 1] == ys[j - 1]:
            common.append(xs[i - 1])
            i, j = i - 1, j - 1
        elif table[i - 1][j] > table[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return common


def _lcs_lengths(xs: list[str], ys: list[str]) -> list[list[int]]:
    """Entry [i][j] is the length of the longest common subsequence of `xs[:i]` and `ys[:j]`."""
    table = [[0] * (len(ys) + 1)]
    for x in xs:
        above, row = table[-1], [0]
        for j, y in enumerate(ys):
            row.append(above[j] + 1 if x == y else max(above[j + 1], row[j]))
        table.append(row)
    return table


_SCORERS: dict[str, Callable[[str, str], float]] = {
    "tofu": partial(_recall, stemmer=True),
    "recall": partial(_recall, stemmer=False),
    "muse": partial(_f1, stemmer=False),
    "muse-open-unlearning": partial(_f1, stemmer=True),
    "rwku": _rwku_recall,
}

CONVENTIONS: tuple[str, ...] = tuple(_SCORERS)
