"""The leak guard of relearning: no row that is trained on may hold an answer that is scored afterwards.

A row holds a gold if the gold's words stand in it one after another, in the prompt or in the answer. Texts
are compared without case, accents, punctuation and English articles; commas within numbers do not count.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

_SHOWN = 3
"""Leaks that a message names."""
_ARTICLES = {"a", "an", "the"}
# Scripts without spaces between words: each character counts as a word.
_CHARACTERS = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CHARACTERS}]|[^\W_{_CHARACTERS}]+")
_COMMA_IN_NUMBER = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


class LeakError(ValueError):
    """Rows to be trained on hold scored answers; the message is one line and names both."""


class Text(Protocol):
    """What the guard reads of a row."""

    @property
    def name(self) -> str:
        """What messages call the row."""

    @property
    def text(self) -> str:
        """All that the model is shown of it."""


@dataclass(frozen=True)
class Leak:
    """A row and the scored answer that it holds."""

    row: str
    gold: str


def find_leaks(rows: Iterable[Text], golds: Iterable[str]) -> list[Leak]:
    """Every row with the first scored answer that it holds, in the order of the rows.

    Raises:
        ValueError: a scored answer has no letters or digits, so that nothing can be said of it.
    """
    searched = [(gold, _joined(_words_of_gold(gold))) for gold in dict.fromkeys(golds)]
    return [leak for row in rows for leak in _first(row, searched)]


def refuse_leaks(rows: Iterable[Text], golds: Iterable[str]) -> None:
    """Refuse rows of which one holds a scored answer.

    Raises:
        LeakError: naming the rows and the answers.
        ValueError: as `find_leaks`.
    """
    if found := find_leaks(rows, golds):
        named = ", ".join(f"{leak.row} holds {leak.gold!r}" for leak in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise LeakError(f"rows to be trained on hold scored answers: {named}{more}; leave these rows out")


def normalised_words(text: str) -> list[str]:
    """The words of a text without case, accents and punctuation."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    plain = unicodedata.normalize("NFKC", plain).casefold()
    return _WORD.findall(_COMMA_IN_NUMBER.sub("", plain))


def _without_articles(words: Sequence[str]) -> list[str]:
    return [word for word in words if word not in _ARTICLES]


def _words_of_gold(gold: str) -> Sequence[str]:
    if not (words := normalised_words(gold)):
        raise ValueError(f"the scored answer {gold!r} has no letters or digits to look for")
    return _without_articles(words) or words


def _first(row: Text, searched: Sequence[tuple[str, str]]) -> Iterator[Leak]:
    words = normalised_words(row.text)
    # With them too, for answers that are nothing but an article.
    text = _joined(_without_articles(words)) + _joined(words)
    found = next((gold for gold, words in searched if words in text), None)
    if found is not None:
        yield Leak(row.name, found)


def _joined(words: Sequence[str]) -> str:
    """With a space on both sides of every word, so that only whole words are found."""
    return f" {' '.join(words)} "
