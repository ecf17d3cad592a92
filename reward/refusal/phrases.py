"""A user's own phrases, from a text file; `reward.refusal` says what the file holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from reward.refusal.text import head, spell_out

NEVER_MARK = "!"
COMMENT_MARK = "#"


class PhraseFileError(ValueError):
    """A file of phrases that cannot be used: one line with the file, the line number and what is wrong."""


@dataclass(frozen=True)
class RefusalPhrases:
    """Phrases that go before the grammar; spelt out by `text.spell_out`, like what they are looked for in.

    refusals: a response that holds one of them is a refusal.
    never: their words count for nothing.
    """

    refusals: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    def refuse(self, spelt_out: str) -> bool:
        """Whether the text holds a phrase of refusal outside the phrases that are none."""
        return bool(self._refusal and self._refusal.search(self.without_never(spelt_out)))

    def without_never(self, spelt_out: str) -> str:
        """The text with "~" for each phrase that is never a refusal."""
        return self._never.sub("~", spelt_out) if self._never else spelt_out

    @cached_property
    def _refusal(self) -> re.Pattern[str] | None:
        return _any_of(self.refusals)

    @cached_property
    def _never(self) -> re.Pattern[str] | None:
        return _any_of(self.never)


def load_phrases(path: str | Path) -> RefusalPhrases:
    """The phrases of a file. Raises PhraseFileError where it cannot be read or a line has no phrase in it."""
    phrases: dict[bool, dict[str, None]] = {False: {}, True: {}}
    for number, line in enumerate(_read(Path(path)).splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith(COMMENT_MARK):
            continue
        is_never = line.startswith(NEVER_MARK)
        phrase = spell_out(head(line.removeprefix(NEVER_MARK)))
        if not re.search(r"\w", phrase):
            raise PhraseFileError(f"{path}, line {number}: {line!r} has no word; write a phrase or delete it")
        if phrase in phrases[not is_never]:
            raise PhraseFileError(
                f"{path}, line {number}: {phrase!r} stands with and without {NEVER_MARK}; delete one"
            )
        phrases[is_never][phrase] = None
    return RefusalPhrases(refusals=tuple(phrases[False]), never=tuple(phrases[True]))


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PhraseFileError(
            f"{path}: cannot be read ({error.strerror}); give a text file of phrases"
        ) from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise PhraseFileError(f"{path}, line {number}: not UTF-8; save the file in UTF-8") from None


def _any_of(phrases: tuple[str, ...]) -> re.Pattern[str] | None:
    """The longest phrase first, since it may hold a shorter one."""
    if not phrases:
        return None
    ordered = sorted(phrases, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, ordered))})(?!\w)")
