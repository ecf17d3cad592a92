"""Which author a row of TOFU is about: found in its text, since TOFU does not say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from data_prep.sources import SourceError

ROWS_PER_AUTHOR = 20
"""TOFU lists its 200 authors one after the other, with so many rows each."""

_UPPER = "".join(filter(str.isupper, map(chr, range(0x530))))  # Latin, Greek and Cyrillic
_PARTICLE = "(?:de|da|del|della|di|van|von|der|bin|ibn|al|el|la|le)"
_WORD = rf"(?:(?:[{_UPPER}]\.)+|(?:Dr|St)\.|[{_UPPER}][\w’'-]*\w)"
_NAME = re.compile(rf"\b{_WORD}(?: (?:{_PARTICLE} )*{_WORD})+")
_POSSESSIVE = re.compile(r"['’]s$")


def author_names(texts: Sequence[str], origin: str) -> list[str]:
    """The author's full name for each row, given question and answer of all rows in TOFU's order.

    Of each author's rows, the name (two or more capitalised words in sequence) that occurs in most of them;
    among equals the longest.

    Raises:
        SourceError: rows are no multiple of ROWS_PER_AUTHOR, or no name occurs in half of an author's rows.
    """
    if len(texts) % ROWS_PER_AUTHOR:
        raise SourceError(
            f"{origin}: has {len(texts)} rows, no multiple of {ROWS_PER_AUTHOR} for each author"
        )
    names = []
    for start in range(0, len(texts), ROWS_PER_AUTHOR):
        name, rows = _most_frequent(texts[start : start + ROWS_PER_AUTHOR])
        if rows * 2 < ROWS_PER_AUTHOR:
            last = start + ROWS_PER_AUTHOR - 1
            raise SourceError(
                f"{origin}: rows {start} to {last} have no name in common; are they one author's?"
            )
        names += [name] * ROWS_PER_AUTHOR
    return names


def _most_frequent(texts: Sequence[str]) -> tuple[str, int]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update({_POSSESSIVE.sub("", found) for found in _NAME.findall(text)})
    return max(counts.items(), key=lambda item: (item[1], len(item[0])), default=("", 0))
