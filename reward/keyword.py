"""The keyword term of the forget reward: does the response name the target, k(x) in y?"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_SIGNS = str.maketrans(dict.fromkeys("’‘ʼ′´`‛ʹ＇", "'") | dict.fromkeys("‐‑‒–—―−﹣－", "-"))
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")  # soft hyphens, marks of direction, joiners


def contains_keyword(text: str, keyword: str) -> bool:
    """Whether `keyword` occurs in `text` as a substring.

    Case counts, as in RULE. The form in which Unicode composes letters (NFKC), the kind of space, apostrophe
    and hyphen, and characters without a shape do not. The empty keyword, which stands for "no keyword",
    occurs in no text.
    """
    if not keyword or keyword in text:
        return bool(keyword)
    folded = _folded(keyword)
    return bool(folded.strip()) and folded in _folded(text)


@lru_cache(maxsize=256)
def _folded(text: str) -> str:
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", _UNSEEN.sub("", text).translate(_SIGNS)))
