"""The report as Markdown: its tables, and links to its figures.

Names, titles and answers are others' texts: nothing in them is taken for Markdown, HTML or the end of a cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from recipe.rerule.reporting.document import Browser, Cell, Figure, Part, Report, Row, Table
from recipe.rerule.reporting.page import CAUTION

_MARKUP = re.compile(r"[\\`*\[\]<>|~$]|(?<!\w)_|_(?!\w)|^(?:[#+=-]+|\d+[.)])(?=\s|$)|&(?=#?\w+;)")
"""What begins or ends something in Markdown where it stands; an underscore within a word does not."""


def markdown_page(report: Report, folder: str) -> str:
    """Everything but the probe browser; figures are linked from `folder`."""
    parts = [f"# {_text(report.title)}", f"> {_text(CAUTION)}"]
    for section in report.sections:
        parts.append(f"## {_text(section.title)}")
        parts += [text for part in section.parts for text in _part(part, folder)]
    sources = "\n".join(f"- {_text(what)}: {_text(text)}" for what, text in report.sources.items())
    commands = "\n".join(f"    {' '.join(command.split())}" for command in report.commands)
    return "\n\n".join([*parts, "## Where this comes from", sources, "Commands:", commands]) + "\n"


def _part(part: Part, folder: str) -> Iterator[str]:
    match part:
        case str():
            yield _text(part)
        case Table():
            yield f"### {_text(part.title)}"
            yield markdown_table(part)
            yield _text(part.caption)
        case Figure():
            yield f"### {_text(part.title)}"
            yield f"![{_text(part.alt)}]({quote(folder)}/{part.name}.png)"
            yield _text(part.explanation)
        case Browser():
            note = f"{part.note} The page shows them; they are in responses.jsonl of the evaluation."
            yield _text(note)


def markdown_table(table: Table) -> str:
    """Models upright, constant answers in italics; no text ends its cell."""
    heads = [_text(head) for head in (table.lead, *(heading.full_text for heading in table.headings))]
    lines = [_line(heads), _line(["---", *("---:" for _ in table.headings)])]
    return "\n".join([*lines, *(_line([_name(row), *map(_cell, row.cells)]) for row in table.rows)])


def _name(row: Row) -> str:
    name = _text(row.name)
    return f"*{name}*" if row.kind == "anchor" else name


def _cell(cell: Cell) -> str:
    interval = f" ({_text(cell.interval)})" if cell.interval else ""
    return _text(cell.text) + _text(cell.mark) + interval


def _text(text: str) -> str:
    """The text on one line, as it reads: HTML's characters by their names, Markdown's with a backslash."""
    return _MARKUP.sub(_escaped, " ".join(text.split()))


def _escaped(found: re.Match[str]) -> str:
    names = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
    return names.get(found[0], f"{found[0][:-1]}\\{found[0][-1]}")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
