"""Rows to train on or to show, and the guard against leaks: rows that hold an answer that is scored.

A row holds a gold if the gold's words stand in it one after another, in the prompt or in the answer. Texts
are compared without case, accents, punctuation and English articles; commas within numbers do not count.
Golds come from probes, since the golds of training rows can be refusals.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from recipe.rerule.evaluation.attacks.attack import RETAIN, Asked
from recipe.rerule.evaluation.probes import Probe

_ARTICLES = {"a", "an", "the"}
# Scripts without spaces between words: each character counts as a word.
_CHARACTERS = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CHARACTERS}]|[^\W_{_CHARACTERS}]+")
_COMMA_IN_NUMBER = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


@dataclass(frozen=True)
class TrainingRow:
    """A prompt and the answer to be learnt.

    Attributes:
        messages: the prompt.
        raw: whether the one message goes to a base model as it is.
    """

    messages: list[dict[str, str]]
    answer: str
    raw: bool = False

    @property
    def text(self) -> str:
        """All that the model is shown: the prompt's messages and the answer, a line each."""
        return "\n".join([*(message["content"] for message in self.messages), self.answer])


def true_answers(probes: Iterable[Probe]) -> list[TrainingRow]:
    """Each probe with its first gold."""
    return [TrainingRow(one.messages, one.golds[0], one.raw) for one in probes]


def of_retain_side(train: Iterable[Probe]) -> list[Probe]:
    """The rows of --train that are of the retain side. Raises ValueError where there are none."""
    if found := [row for row in train if row.section == RETAIN]:
        return found
    raise ValueError("--train has no rows of section retain, of which this attack makes its rows")


def retained(train: Iterable[Probe]) -> list[TrainingRow]:
    """The rows of the retain side with their first golds. Raises ValueError where there are none."""
    return true_answers(of_retain_side(train))


def golds_of(asked: Iterable[Asked]) -> list[str]:
    """Every gold of the probes."""
    return [gold for one in asked for gold in one.probe.golds]


def without_leaks(rows: Iterable[TrainingRow], golds: Iterable[str]) -> list[TrainingRow]:
    """The rows that hold no scored answer; benchmarks ask one fact in several rows.

    Raises ValueError for a scored answer without letters or digits, of which nothing can be said.
    """
    searched, found = [], []
    for gold in dict.fromkeys(golds):
        if not (words := normalised_words(gold)):
            raise ValueError(f"the scored answer {gold!r} has no letters or digits to look for")
        searched.append(_joined([word for word in words if word not in _ARTICLES] or words))
    for row in rows:
        words = normalised_words(row.text)
        # With articles too, for answers that are nothing but an article.
        text = _joined(word for word in words if word not in _ARTICLES) + _joined(words)
        if not any(wanted in text for wanted in searched):
            found.append(row)
    return found


def normalised_words(text: str) -> list[str]:
    """The words of a text without case, accents and punctuation."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    plain = unicodedata.normalize("NFKC", plain).casefold()
    return _WORD.findall(_COMMA_IN_NUMBER.sub("", plain))


def _joined(words: Iterable[str]) -> str:
    """With a space on both sides of every word, so that only whole words are found."""
    return f" {' '.join(words)} "
