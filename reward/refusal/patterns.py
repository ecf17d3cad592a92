"""The notation in which the grammar is written, and its translation to regular expressions.

Words stand for themselves, in the spelling of `text.spell_out`. On top of regular expressions:
    (a|b)     one of them; groups capture nothing
    <name>    a table of the vocabulary
    ..        up to six words between
    $         the end of the clause
Line breaks, and spaces after them, count for nothing: a long pattern is broken before "|" or "(".
A table lists phrases parted by a comma and white space. In a table of verbs each phrase begins with a base
form, which gets its regular endings; irregular forms follow after a slash ("tell/told"). All match whole
words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

_GAP = r" (?:[\w'.~-]+ ){0,6}?"
_END = r"(?=[\s.!?]*$)"


def phrases(table: str) -> str:
    """A regular expression for any phrase of the table."""
    return _any_of(_split(table))


def verbs(table: str) -> str:
    """A regular expression for any verb of the table in any of its forms."""
    return _any_of([form for verb in _split(table) for form in _forms(verb)])


def expand(pattern: str, tables: Mapping[str, str] = MappingProxyType({})) -> str:
    """The pattern with its tables filled in, as a regular expression."""
    pattern = re.sub(r"\n\s*", "", pattern)
    pattern = re.sub(r"(?<!\\)\((?!\?)", "(?:", pattern).replace(" .. ", _GAP)
    pattern = re.sub(r"(?<!\\) ?\$", lambda _: _END, pattern)
    return re.sub(r"(?<!\?P)<(\w+)>", lambda name: tables[name[1]], pattern)


def words(pattern: str, tables: Mapping[str, str] = MappingProxyType({})) -> str:
    """The same for whole words: neither a word goes on before the pattern nor after it."""
    return rf"(?<!\w)(?:{expand(pattern, tables)})(?!\w)"


def _split(table: str) -> list[str]:
    return [" ".join(phrase.split()) for phrase in re.split(r",\s", table) if phrase.strip()]


def _forms(verb: str) -> list[str]:
    first, _, rest = verb.partition(" ")
    base, *irregular = first.split("/")
    if base.endswith("e"):
        base = base[:-1] + "(e|es|ed|ing)"
    elif re.search("[^aeiou]y$", base):
        base = base[:-1] + "(y|ies|ied|ying)"
    else:
        base += "(s|es|ed|ing)?"
    return [f"{form} {rest}" if rest else form for form in (base, *irregular)]


def _any_of(patterns: list[str]) -> str:
    """Sorted by first letter, which makes the search many times faster than a flat list."""
    initials: dict[str, list[str]] = {}
    for pattern in map(expand, patterns):
        initial = pattern[0] if pattern[0].isalpha() and pattern[1:2] not in ("?", "*", "+", "{") else ""
        initials.setdefault(initial, []).append(pattern.removeprefix(initial))
    branches = (f"{initial}(?:{'|'.join(rests)})" for initial, rests in initials.items())
    return rf"\b(?:{'|'.join(branches)})(?!\w)"
