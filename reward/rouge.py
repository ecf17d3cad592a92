"""ROUGE-L in the conventions of the unlearning benchmarks, and in one for data of one's own.

| convention           | package         | statistic | tokens                                     | stemmer |
|----------------------|-----------------|-----------|--------------------------------------------|---------|
| tofu                 | `rouge_score`   | recall    | lower case, [a-z0-9]+                      | yes     |
| recall               | `rouge_score`   | recall    | lower case, [a-z0-9]+                      | no      |
| muse                 | `rouge_score`   | F1        | lower case, [a-z0-9]+                      | no      |
| muse-open-unlearning | `rouge_score`   | F1        | lower case, [a-z0-9]+                      | yes     |
| rwku                 | `rouge` 1.0.1   | recall    | "." ends a sentence, then white space;     | no      |
|                      |                 |           | case and other punctuation count           |         |
| unicode              | `rouge_score`   | recall    | `words`: letters and digits of any script  | no      |

About one decision "ROUGE-L > 0.3" in nine differs between conventions, so every table names its own. Text
without Latin letters or digits has no tokens in the first four and scores 0. `unicode`, the default for data
that belong to no benchmark, gives the same as `recall` where all letters are a to z.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import regex

from reward.keyword import UNSEEN

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer


_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
"""Scripts that write no space between words."""
_WORD = regex.compile(rf"([{_UNSPACED}]\p{{M}}*|[[\p{{L}}\p{{M}}\p{{N}}]--[{_UNSPACED}]]+)", regex.V1)
# accents of Latin, Greek and Cyrillic letters; vowel points of Hebrew and Arabic
_ACCENTS = regex.compile(r"[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u064b-\u0652]+")
# what people write for letters that Unicode does not take apart
_LETTERS = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th"}
)


def words(text: str) -> list[str]:
    """The words of a text in any script: runs of letters, marks and digits, in NFKC, without case or accents.

    Each character of a script that writes no spaces is a word. "Zürich" and "Zurich" are one word, as are
    "Søren" and "Soren", because people leave accents out, and an answer must not count as another for it;
    vowel signs, which carry the word in Hindi or Thai, stay. Characters without a shape part no words.
    """
    if not text.isascii():
        bare = _ACCENTS.sub("", unicodedata.normalize("NFKD", UNSEEN.sub("", text)).casefold())
        text = unicodedata.normalize("NFKC", bare).translate(_LETTERS)
    return _WORD.findall(text.lower())


def pieces(text: str) -> list[str]:
    """The words of a text as they are written, and what stands between them, in turn."""
    return _WORD.split(text)


def is_unspaced(word: str) -> bool:
    """Whether a word of `words` is a character of a script that writes no spaces."""
    return regex.match(f"[{_UNSPACED}]", word) is not None


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


def _package_score(
    prediction: str, reference: str, *, statistic: str, stemmer: bool = False, any_script: bool = False
) -> float:
    """A statistic of the package `rouge_score`."""
    scorer = _scorer(stemmer, any_script)
    return float(getattr(scorer.score(target=reference, prediction=prediction)["rougeL"], statistic))


@lru_cache(maxsize=3)
def _scorer(stemmer: bool, any_script: bool) -> RougeScorer:
    # Loads nltk, which takes over a second; `data_prep --help` needs neither.
    from rouge_score.rouge_scorer import RougeScorer

    tokenizer = SimpleNamespace(tokenize=words) if any_script else None
    return RougeScorer(["rougeL"], use_stemmer=stemmer, tokenizer=tokenizer)


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
    "tofu": partial(_package_score, statistic="recall", stemmer=True),
    "recall": partial(_package_score, statistic="recall"),
    "muse": partial(_package_score, statistic="fmeasure"),
    "muse-open-unlearning": partial(_package_score, statistic="fmeasure", stemmer=True),
    "rwku": _rwku_recall,
    "unicode": partial(_package_score, statistic="recall", any_script=True),
}

CONVENTIONS: tuple[str, ...] = tuple(_SCORERS)
