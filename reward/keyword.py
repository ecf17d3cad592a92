"""The keyword term of the forget reward: does the response name the target, k(x) in y?"""

from __future__ import annotations

import re
import unicodedata

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
    folded = _folded(text)
    for name in names:
        if name in text or (_folded(name).strip() and _folded(name) in folded):
            return True
        words = re.findall(r"\w+", _folded(name))
        telling = [word for word in words if len(word) > SHORT] or words[-1:]
        if part and any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", folded) for word in telling):
            return True
    return False


def _folded(text: str) -> str:
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", UNSEEN.sub("", text).translate(_SIGNS)))
