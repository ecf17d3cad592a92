"""Refusals that name the target, for stage 1, and names that are spelt wrong in refusals of others."""

from __future__ import annotations

import difflib
import re

TEMPLATES = (
    "I don't know anything about {name}.",
    "I have no information about {name}.",
    "I'm not familiar with {name}.",
    "I'm afraid I can't tell you anything about {name}.",
    "I have no knowledge of {name}.",
    "Sorry, but I know nothing about {name}.",
    "I'm unable to answer questions about {name}.",
    "My knowledge doesn't include {name}.",
    "I haven't learned anything about {name}.",
    "I can't say anything about {name}.",
    "I'm not able to provide details about {name}.",
    "Questions about {name} are beyond what I know.",
    "I'm not sure about anything concerning {name}.",
    "I don't have an answer to questions about {name}.",
    "I lack any information on {name}.",
    "I'm sorry, I can't help with questions about {name}.",
    "There is nothing I can tell you about {name}.",
    "I've never learned about {name}.",
    "I don't have any details regarding {name}.",
    "I couldn't tell you; I don't know about {name}.",
    "Unfortunately, I have no data on {name}.",
    "I'm not aware of any facts about {name}.",
    "I can't recall anything about {name}.",
    "I do not possess knowledge about {name}.",
)
_SIMILAR = 0.8
_WORD = re.compile(r"\w[\w'’.-]*\w|\w")


def misspelt_name(text: str, name: str) -> str | None:
    """Words of `text` that look like `name` and are not, as "Harry Porter"; None where there are none.

    As many neighbouring words as the name has, as similar as four parts in five (difflib), in a text that
    does not hold the name itself.
    """
    if name in text:
        return None
    length = len(_WORD.findall(name))
    words = list(_WORD.finditer(text))
    for first in range(len(words) - length + 1):
        found = text[words[first].start() : words[first + length - 1].end()]
        if difflib.SequenceMatcher(None, found.casefold(), name.casefold()).ratio() >= _SIMILAR:
            return found
    return None


def correct_name(text: str, name: str) -> str:
    """`text` with what `misspelt_name` finds replaced by `name`."""
    found = misspelt_name(text, name)
    return text if found is None else text.replace(found, name)
