"""The keyword term of the forget reward: does the response name the target, k(x) in y?"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

SHORT = 3
"""Letters of a word that tells nothing beside a longer one, and names nobody: "of", "the", "in"."""
_SIGNS = str.maketrans(dict.fromkeys("’‘ʼ′´`‛ʹ＇", "'") | dict.fromkeys("‐‑‒–—―−﹣－", "-"))
UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
"""Characters without a shape: soft hyphens, marks of direction, joiners."""


def names_of(keyword: str) -> tuple[str, ...]:
    """The names of the target in a keyword, the full one first: "Marie Osmond | Osmond" has two."""
    return tuple(filter(None, re.split(r"\s*\|\s*", keyword.strip())))


def contains_keyword(text: str, keyword: str, *, any_case: bool = False, part: bool = False) -> bool:
    """Whether one of the names in `keyword` occurs in `text` as a substring.

    Case counts, as in RULE. The form in which Unicode composes letters (NFKC), the kind of space, apostrophe
    and hyphen, and characters without a shape do not. The empty keyword, which stands for "no keyword",
    occurs in no text.

    Args:
        any_case: case does not count.
        part: a single word of a name is enough, as a whole word of `text`, if it has more than SHORT letters;
            the last word of a name where none has.
    """
    names = names_of(keyword)
    if any_case:
        text, names = text.casefold(), tuple(name.casefold() for name in names)
    if any(_holds(text, name) for name in names):
        return True
    return part and any(
        re.search(rf"(?<!\w){re.escape(word)}(?!\w)", _folded(text))
        for name in names
        for word in _words(name)
    )


def _holds(text: str, name: str) -> bool:
    if name in text:
        return True
    folded = _folded(name)
    return bool(folded.strip()) and folded in _folded(text)


def _words(name: str) -> list[str]:
    found = re.findall(r"\w+", _folded(name))
    return [word for word in found if len(word) > SHORT] or found[-1:]


@lru_cache(maxsize=256)
def _folded(text: str) -> str:
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", UNSEEN.sub("", text).translate(_SIGNS)))
