"""The command lines of the documents, and their words.

A block of code is fenced, or indented by four spaces after an empty line or a heading. A block that holds a
command holds commands and assignments alone.
"""

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

_LAUNCHERS = r"(?:\S*/)?(?:python3?(?:\.\d+)?|rerule|bash|make|pip|sbatch|vllm|mutmut|pre-commit)"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_COMMAND = re.compile(rf"(?:[A-Z_]+=(?:\"[^\"]*\"|\S*) +)*{_LAUNCHERS}(?: |$)")
_INLINE = re.compile(r"(?<!`)`((?:python -m\s|rerule\s|bash examples/|make\s)[^`]*)`(?!`)")
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:\n\n|^#[^\n]*\n)((?: {4}[^\n]*\n)+)", re.MULTILINE)


@dataclass(frozen=True)
class CommandLine:
    """One command of a document.

    Attributes:
        words: program and arguments, with variables of the document filled in.
        environment: what is assigned in front of the program.
        text: the document, and the line as it stands there.
        inline: whether it is a part of a sentence, by name or with a few of its options alone.
    """

    words: tuple[str, ...]
    environment: dict[str, str]
    text: str
    inline: bool = False


def commands(path: Path) -> list[CommandLine]:
    """All commands of a document, those of blocks first.

    Raises:
        ValueError: a block of commands holds something else.
    """
    text = path.read_text()
    blocks = [block for language, block in _FENCE.findall(text) if language in ("bash", "sh", "shell", "")]
    text = _FENCE.sub("\n", text)
    variables: dict[str, str] = {}
    found: list[CommandLine] = []
    for block in (*blocks, *_INDENTED.findall(text)):
        lines = [" ".join(line.split()) for line in block.replace("\\\n", " ").splitlines()]
        if any(map(_COMMAND.match, lines)):
            for line in lines:
                found += _commands_of(line, path.name, variables)
    for sentence in _INLINE.findall(_INDENTED.sub("\n", text)):
        words = tuple(shlex.split(sentence, comments=True))
        found.append(CommandLine(words, {}, f"{path.name}: {' '.join(sentence.split())}", inline=True))
    return found


def _commands_of(line: str, document: str, variables: dict[str, str]) -> Iterator[CommandLine]:
    """The commands of one line; what it assigns goes into `variables`."""
    filled = [
        re.sub(r"\$(\w+)", lambda found: variables.get(found[1], found[0]), word)
        for word in shlex.split(line, comments=True)
    ]
    for is_and, part in itertools.groupby(filled, "&&".__eq__):
        words = list(part)
        environment: dict[str, str] = {}
        while words and (assigned := _ASSIGNMENT.fullmatch(words[0])):
            environment[assigned[1]] = assigned[2]
            words = words[1:]
        if not words:
            variables |= environment
        elif not is_and and words[0] not in (".", "export"):
            if not re.fullmatch(_LAUNCHERS, words[0]):
                raise ValueError(f"{document}: {words[0]!r} begins a line of a block of commands")
            yield CommandLine(tuple(words), environment, f"{document}: {line}")
