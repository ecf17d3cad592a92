"""The report as Markdown: its tables, and links to its figures.

Names, titles and answers are others' texts: nothing in them is taken for Markdown, HTML or the end of a cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote

from recipe.rerule.reporting.document import Browser, Cell, Figure, Part, Report, Row, Table

_MARKUP = re.compile(r"[\\`*\[\]<>|~$]|(?<!\w)_|_(?!\w)|^(?:[#+=-]+|\d+[.)])(?=\s|$)|&(?=#?\w+;)")
"""What begins or ends something in Markdown where it stands; an underscore within a word does not."""


def markdown_page(report: Report, folder: str) -> str:
    """Everything but the probe browser; figures are linked from `folder`."""
    parts = [f"# {escaped(report.title)}", f"> {escaped(report.caution)}"]
    for section in report.sections:
        parts.append(f"## {escaped(section.title)}")
        parts += [text for part in section.parts for text in _part(part, folder)]
    sources = "\n".join(f"- {escaped(what)}: {escaped(text)}" for what, text in report.sources.items())
    commands = "\n".join(f"    {' '.join(command.split())}" for command in report.commands)
    return "\n\n".join([*parts, "## Where this comes from", sources, "Commands:", commands]) + "\n"


def _part(part: Part, folder: str) -> Iterator[str]:
    match part:
        case str():
            yield escaped(part)
        case Table():
            yield f"### {escaped(part.title)}"
            yield markdown_table(part)
            yield escaped(part.caption)
        case Figure():
            yield f"### {escaped(part.title)}"
            yield f"![{escaped(part.alt)}]({quote(folder)}/{part.name}.png)"
            yield escaped(part.explanation)
        case Browser():
            note = f"{part.note} The page shows them; they are in responses.parquet of the evaluation."
            yield escaped(note)


def escaped(text: str) -> str:
    """The text on one line, as it reads: HTML's characters by their names, Markdown's with a backslash."""
    return _MARKUP.sub(_escaped, plain(text))


def plain(text: str) -> str:
    """The text on one line; what is Markdown in it stays Markdown."""
    return " ".join(text.split())


def markdown_table(table: Table, text: Callable[[str], str] = escaped) -> str:
    """Models upright, constant answers in italics; with `escaped` no text ends its cell."""
    heads = [text(head) for head in (table.lead, *(heading.full_text for heading in table.headings))]
    lines = [_line(heads), _line(["---", *("---:" for _ in table.headings)])]
    rows = (_line([_name(row, text), *(_cell(cell, text) for cell in row.cells)]) for row in table.rows)
    return "\n".join([*lines, *rows])


def _name(row: Row, text: Callable[[str], str]) -> str:
    return f"*{text(row.name)}*" if row.kind == "anchor" else text(row.name)


def _cell(cell: Cell, text: Callable[[str], str]) -> str:
    interval = f" ({text(cell.interval)})" if cell.interval else ""
    return text(cell.text) + text(cell.mark) + interval


def _escaped(found: re.Match[str]) -> str:
    names = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
    return names.get(found[0], f"{found[0][:-1]}\\{found[0][-1]}")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
