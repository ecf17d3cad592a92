"""What counts as the same prompt, and what no text may hold."""

from __future__ import annotations

import re
import unicodedata

_NOT_IN_WORDS = re.compile(r"[^\w\s]")
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
"""Control characters other than white space: a tab, a line end of any kind, a form feed."""


def normalise(text: str) -> str:
    """Words and symbols alone, in lower case: what prompts are compared by.

    Unicode forms of one text (NFKC), quotation marks, punctuation, white space, invisible characters and the
    length of a blank make no difference; vowel signs and symbols such as + or € do.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.sub("_+", "_", _NOT_IN_WORDS.sub(_replacement, folded)).split())


def control_character(text: str) -> str | None:
    """The first of CONTROL in a text, and where it is; None where there is none."""
    found = CONTROL.search(text)
    return found and f"the control character U+{ord(found[0]):04X} at character {found.start() + 1}"


def _replacement(match: re.Match[str]) -> str:
    category = unicodedata.category(match[0])
    if category == "Cf":  # soft hyphens, joiners and other invisible characters
        return ""
    if category in ("Sm", "Sc", "So"):
        return f" {match[0]} "
    return match[0] if category.startswith("M") and _follows_letter(match) else " "


def _follows_letter(mark: re.Match[str]) -> bool:
    """Whether a combining mark belongs to a word: an accent used as a quote is a space and a mark in NFKC."""
    before = mark.string[mark.start() - 1] if mark.start() else " "
    return before.isalnum() or unicodedata.category(before).startswith("M")
