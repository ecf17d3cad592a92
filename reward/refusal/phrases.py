"""Phrases of refusal, from text files: those of the languages that come with the package, and a user's own.

`reward.refusal` says what a file holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path

from reward.refusal.text import UNSPACED, head, spell_out, unquoted_sentences

NEVER_MARK = "!"
OPENING_MARK = "^"
COMMENT_MARK = "#"
GAP = ".."
GAP_WORDS = 8
GAP_CHARS = 12
"""The most that a gap holds: words, or characters where words stand without spaces."""
LANGUAGES = tuple(sorted(path.stem for path in (Path(__file__).parent / "languages").glob("*.txt")))
"""Codes (ISO 639-1) of the languages whose phrases come with the package."""

_UNSPACED = re.compile(f"[{UNSPACED}]")
_WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")
_LETTER = r"[\w\u0900-\u0963\u0970-\u0dff]"  # vowel signs of India too, which are not \w
_PAUSE = r"\s,;:.!?"
_ELIDED = r" (?:\w{1,6}')?"
"""A space, and a word that leans on the next: "d'informations", "dell'Italia"."""
_WORDS = rf"(?:\s+[^{_PAUSE}]+){{0,{GAP_WORDS}}}?"
_CHARS = rf"(?:[^{_PAUSE}]| ){{0,{GAP_CHARS}}}?"


@dataclass(frozen=True)
class RefusalPhrases:
    """Phrases that go before the grammar; spelt out by `text.spell_out`, like what they are looked for in.

    refusals: a response that holds one of them is a refusal.
    never: their words count for nothing.
    openings: a response is a refusal where its opening holds one of them: its first sentence, but for
        sentences without a word outside `never`, and questions. Quotations are not read.
    """

    refusals: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    openings: tuple[str, ...] = ()

    def refuse(self, start: str) -> bool:
        """Whether the head of a response (`text.head`) holds a phrase of refusal where it counts."""
        if self.refusals and self._refusal.search(self.without_never(spell_out(start))):
            return True
        return bool(self.openings) and self._opens(map(self.without_never, unquoted_sentences(start)))

    def without_never(self, spelt_out: str) -> str:
        """The text with "~" for each phrase that is never a refusal."""
        return self._never.sub("~", spelt_out) if self.never else spelt_out

    def _opens(self, sentences: Iterable[str]) -> bool:
        for sentence in sentences:
            if self._opening.search(sentence):
                return True
            if re.search(r"\w", sentence) and not sentence.endswith("?"):
                return False
        return False

    @cached_property
    def _refusal(self) -> _AnyOf:
        return _AnyOf(self.refusals)

    @cached_property
    def _never(self) -> _AnyOf:
        return _AnyOf(self.never)

    @cached_property
    def _opening(self) -> _AnyOf:
        return _AnyOf(self.openings)


@lru_cache(maxsize=8)
def of_languages(never: tuple[str, ...] = ()) -> RefusalPhrases:
    """The phrases of all LANGUAGES together, with more that are `never` a refusal; read once a process."""
    found = [load_phrases(Path(__file__).parent / "languages" / f"{code}.txt") for code in LANGUAGES]
    return RefusalPhrases(
        never=(*never, *(phrase for one in found for phrase in one.never)),
        openings=tuple(phrase for one in found for phrase in one.openings),
    )


def load_phrases(path: str | Path) -> RefusalPhrases:
    """The phrases of a file. Raises ValueError where it cannot be read or a line has no phrase in it."""
    phrases: dict[str, dict[str, None]] = {"": {}, NEVER_MARK: {}, OPENING_MARK: {}}
    for number, line in enumerate(_read(Path(path)).splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith(COMMENT_MARK):
            continue
        mark = line[0] if line[0] in phrases else ""
        phrase = spell_out(head(line.removeprefix(mark)))
        if not re.search(r"\w", phrase):
            raise ValueError(f"{path}, line {number}: {line!r} has no word; write a phrase or delete it")
        if any(
            phrase in phrases[other] for other in phrases if (other == NEVER_MARK) != (mark == NEVER_MARK)
        ):
            raise ValueError(
                f"{path}, line {number}: {phrase!r} stands with and without {NEVER_MARK}; delete one"
            )
        phrases[mark][phrase] = None
    return RefusalPhrases(*(tuple(found) for found in phrases.values()))


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); give a text file of phrases") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {number}: not UTF-8; save the file in UTF-8") from None


class _AnyOf:
    """Finds phrases, the longest first, since it may hold a shorter one.

    Only those are tried whose first word stands in the text, and they are compiled when they are tried: the
    languages have hundreds.
    """

    def __init__(self, phrases: Iterable[str]) -> None:
        self._by_first: dict[str, list[str]] = {}
        for phrase in sorted(phrases, key=len, reverse=True):
            worded = next(token for token in phrase.split() if _WORD.search(token))
            for first in {"".join(_WORD.findall(choice)[:1]) for choice in _choices(worded)}:
                self._by_first.setdefault(first, []).append(phrase)

    def search(self, text: str) -> bool:
        """Whether the text holds one of them."""
        return any(_pattern(phrase).search(text) for phrase in self._possible(text))

    def sub(self, replacement: str, text: str) -> str:
        """The text with the replacement for each of them."""
        for phrase in sorted(self._possible(text), key=len, reverse=True):
            text = _pattern(phrase).sub(replacement, text)
        return text

    def _possible(self, text: str) -> dict[str, None]:
        found = (self._by_first.get(word, ()) for word in ("", *_WORD.findall(text)))
        return dict.fromkeys(chain.from_iterable(found))


@lru_cache(maxsize=4096)
def _pattern(phrase: str) -> re.Pattern[str]:
    written, before, gap = "", "", False
    for token in phrase.split():
        if token == GAP:
            gap = True
            continue
        unspaced = bool(_UNSPACED.search(before[-1:] + token[0]))
        if before:
            written += (_CHARS if unspaced else _WORDS) * gap
            written += " ?" if unspaced or token[0] in ",;:" else _ELIDED
        written += f"(?:{'|'.join(map(re.escape, _choices(token)))})"
        before, gap = token, False
    starts = "" if _UNSPACED.match(phrase) or phrase[0] == "," else f"(?<!{_LETTER})"
    ends = "" if _UNSPACED.match(before[-1:]) else f"(?!{_LETTER})"
    return re.compile(f"{starts}{written}{ends}")


def _choices(token: str) -> list[str]:
    return sorted(filter(None, token.split("|")), key=len, reverse=True) or [token]
