"""The command lines of the documents: where they stand, and their words.

A block of code is fenced, or indented by four spaces after an empty line or a heading. A block that holds a
command holds commands, assignments and loops alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

_LAUNCHERS = r"(\S*/)?(python3?(\.\d+)?|rerule|bash|make|pip|ray|vllm|mutmut|pre-commit)"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_COMMAND = re.compile(rf"(do +)?([A-Z_]+=(\"[^\"]*\"|\S*) +)*{_LAUNCHERS}( |$)")
_INLINE = re.compile(r"(?<!`)`((?:python -m\s|rerule\s|bash examples/|make\s)[^`]*)`(?!`)")
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:\n\n|^#[^\n]*\n)((?: {4}[^\n]*\n)+)", re.MULTILINE)
_LOGICAL = re.compile(r"(?:[^\n]*\\\n)*[^\n]*\n")
"""A line, with the lines that follow a backslash."""
_SHELL = {"bash", "sh", "shell", ""}
"""Languages of fences that may hold commands."""


@dataclass(frozen=True)
class CommandLine:
    """One command of a document.

    Attributes:
        place: document and line, for messages.
        words: program and arguments, with variables of the document filled in.
        environment: what is assigned in front of the program.
        text: as it stands there.
        inline: whether it is a part of a sentence, by name or with a few of its options alone.
    """

    place: str
    words: tuple[str, ...]
    environment: dict[str, str]
    text: str
    inline: bool = False


def commands(path: Path) -> list[CommandLine]:
    """All commands of a document, those of blocks first.

    Raises:
        ValueError: a block of commands holds something else.
    """
    variables: dict[str, str] = {}
    found = []
    for number, block in sorted(_blocks(path.read_text())):
        lines = [
            (number + block[: one.start()].count("\n"), " ".join(one[0].replace("\\\n", " ").split()))
            for one in _LOGICAL.finditer(block)
        ]
        if any(_COMMAND.match(text) for _, text in lines):
            for at, text in lines:
                found += _commands_of(text, f"{path.name}:{at}", variables)
    for place, text in _sentences(path.read_text()):
        found.append(
            CommandLine(f"{path.name}:{place}", tuple(shlex.split(text, comments=True)), {}, text, True)
        )
    return found


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """The number of the first line and the lines of each block that may hold commands."""
    for fence in _FENCE.finditer(text):
        if fence[1] in _SHELL:
            yield text.count("\n", 0, fence.start(2)) + 1, fence[2]
    text = _blanked(_FENCE, text)
    for block in _INDENTED.finditer(text):
        yield text.count("\n", 0, block.start(1)) + 1, block[1]


def _sentences(text: str) -> Iterator[tuple[int, str]]:
    """The number of the line and the words of each command that stands in a sentence."""
    text = _blanked(_INDENTED, _blanked(_FENCE, text))
    for match in _INLINE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, " ".join(match[1].split())


def _blanked(pattern: re.Pattern[str], text: str) -> str:
    """The text with empty lines in the place of what the pattern finds."""
    return pattern.sub(lambda found: "\n" * found[0].count("\n"), text)


def _commands_of(text: str, place: str, variables: dict[str, str]) -> Iterator[CommandLine]:
    """The commands of one line; what it assigns goes into `variables`."""
    words = [
        re.sub(r"\$(\w+)", lambda found: variables.get(found[1], found[0]), word)
        for word in shlex.split(text, comments=True)
    ]
    if not words or words[0] == "done":
        return
    if words[0] == "for":
        variables[words[1]] = words[3].rstrip(";")
        return
    environment: dict[str, str] = {}
    for part in " ".join(map(shlex.quote, words[words[0] == "do" :])).split(" '&&' "):
        one = shlex.split(part)
        one = one[one[:1] == ["export"] :]
        while one and (assigned := _ASSIGNMENT.fullmatch(one[0])):
            environment[assigned[1]] = assigned[2]
            one = one[1:]
        if not one:
            variables |= environment
        elif one[0] != ".":  # activating an environment
            if not re.fullmatch(_LAUNCHERS, one[0]):
                raise ValueError(f"{place}: {one[0]!r} begins a line of a block of commands")
            yield CommandLine(place, tuple(one), environment, text)
