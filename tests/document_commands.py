"""The command lines of the documents: where they stand, their words, and how their block is marked.

A block of code is fenced, or indented by four spaces or more after an empty line or a heading. A block that
holds a command holds commands, assignments and loops alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_TRIED = re.compile(r"\*\*Not tried\b[^*]*\*\*")
BY_HAND = re.compile(r"\*\*Run by hand\b[^*]*\*\*")
"""What marks a block, in the paragraph right before it."""

_LAUNCHERS = r"(\S*/)?(python3?(\.\d+)?|rerule|bash|make|pip|ray|vllm|mutmut|pre-commit)"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_COMMAND = re.compile(rf"(do +)?([A-Z_]+=(\"[^\"]*\"|\S*) +)*{_LAUNCHERS}( |$)")
_INLINE = re.compile(r"(?<!`)`((?:python -m\s|rerule\s|bash examples/|make\s)[^`]*)`(?!`)")
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
        mark: "not tried", "by hand" or "", of its block.
        inline: whether it is a part of a sentence.
    """

    place: str
    words: tuple[str, ...]
    environment: dict[str, str]
    text: str
    mark: str = ""
    inline: bool = False


@dataclass
class Block:
    """A block of code: its first line's number, its lines, and the paragraph before it."""

    number: int
    lines: list[str] = field(default_factory=list)
    before: str = ""

    @property
    def mark(self) -> str:
        if NOT_TRIED.search(self.before):
            return "not tried"
        return "by hand" if BY_HAND.search(self.before) else ""


def commands(path: Path) -> list[CommandLine]:
    """All commands of a document, those of blocks first."""
    variables: dict[str, str] = {}
    found = []
    for block in blocks(path.read_text()):
        lines = list(_logical(block))
        if any(_COMMAND.match(text) for _, text in lines):
            found += [
                one
                for number, text in lines
                for one in _commands_of(text, f"{path.name}:{number}", variables, block.mark)
            ]
    return [*found, *inline_commands(path)]


def inline_commands(path: Path) -> list[CommandLine]:
    """The commands that stand in sentences, some of them only by name or with a few of their options."""
    text = _without_fences(path.read_text())
    found = []
    for match in _INLINE.finditer(text):
        place = f"{path.name}:{text[: match.start()].count(chr(10)) + 1}"
        one = " ".join(match[1].split())
        found.append(CommandLine(place, tuple(_words(one)), {}, one, inline=True))
    return found


def blocks(text: str) -> list[Block]:
    """The blocks of code that may hold commands."""
    found: list[Block] = []
    paragraph, previous, fence, inside = "", "", None, False
    for number, line in enumerate(text.splitlines(), start=1):
        opens = re.match(r" *```(\w*)", line)
        if opens and not inside:
            inside, fence = True, Block(number + 1, before=paragraph) if opens[1] in _SHELL else None
        elif opens:
            inside = False
            found += [fence] if fence else []
            previous = ""
            continue
        elif inside:
            if fence:
                fence.lines.append(line.strip())
        elif line.startswith("    ") and (not previous.strip() or previous.startswith(("#", "    "))):
            if not (found and found[-1].number + len(found[-1].lines) == number):
                found.append(Block(number, before=paragraph))
            found[-1].lines.append(line.strip())
        elif line.strip():
            paragraph = (
                f"{paragraph}\n{line}" if previous.strip() and not previous.startswith("    ") else line
            )
        previous = line
    return found


def _logical(block: Block) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; those that end in a backslash go on."""
    start, text = block.number, ""
    for number, line in enumerate(block.lines, start=block.number):
        if not text:
            start = number
        text = f"{text} {line}".strip()
        if text.endswith("\\"):
            text = text[:-1].rstrip()
        else:
            if text:
                yield start, text
            text = ""


def _commands_of(text: str, place: str, variables: dict[str, str], mark: str) -> Iterator[CommandLine]:
    """The commands of one line. Raises ValueError where it holds something else."""
    try:
        words = [_filled(word, variables) for word in _words(text)]
    except ValueError as error:
        raise ValueError(f"{place}: {text}: {error}") from error
    environment: dict[str, str] = {}
    if not words or words[0] == "done":
        return
    if words[0] == "for":
        variables[words[1]] = words[3].rstrip(";")
        return
    for part in _parts(words[1:] if words[0] == "do" else words):
        part = part[1:] if part[:1] == ["export"] else part
        while part and (assigned := _ASSIGNMENT.fullmatch(part[0])):
            environment[assigned[1]] = assigned[2]
            part = part[1:]
        if not part:
            variables |= environment
        elif part[0] != ".":  # activating an environment
            if not re.fullmatch(_LAUNCHERS, part[0]):
                raise ValueError(f"{place}: {part[0]!r} begins a line of a block of commands")
            yield CommandLine(place, tuple(part), environment, text, mark)


def _parts(words: list[str]) -> Iterator[list[str]]:
    """The words between &&."""
    part: list[str] = []
    for word in [*words, "&&"]:
        if word == "&&":
            yield part
            part = []
        else:
            part.append(word)


def _filled(word: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda found: variables.get(found[1], found[0]), word)


def _words(text: str) -> list[str]:
    return shlex.split(text, comments=True)


def _without_fences(text: str) -> str:
    """The text with empty lines in the place of code that is no part of a sentence."""
    blank = re.compile(r"^ *```.*?^ *```|^ {4}[^\n]*$", re.DOTALL | re.MULTILINE)
    return blank.sub(lambda found: "\n" * found[0].count("\n"), text)
