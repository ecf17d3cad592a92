"""The report as Markdown: its tables, and links to its figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from recipe.rerule.reporting.document import Browser, Cell, Figure, Part, Report, Row, Table
from recipe.rerule.reporting.page import CAUTION


def markdown_page(report: Report, folder: str) -> str:
    """Everything but the probe browser; figures are linked from `folder`."""
    parts = [f"# {report.title}", f"> {CAUTION}"]
    for section in report.sections:
        parts.append(f"## {section.title}")
        parts += [text for part in section.parts for text in _part(part, folder)]
    sources = "\n".join(f"- {_one_line(what)}: {text}" for what, text in report.sources.items())
    commands = "\n".join(f"    {command}" for command in report.commands)
    return "\n\n".join([*parts, "## Where this comes from", sources, "Commands:", commands]) + "\n"


def _part(part: Part, folder: str) -> Iterator[str]:
    match part:
        case str():
            yield part
        case Table():
            yield f"### {_one_line(part.title)}"
            yield markdown_table(part)
            yield part.caption
        case Figure():
            yield f"### {part.title}"
            yield f"![{part.alt}]({folder}/{part.name}.png)"
            yield part.explanation
        case Browser():
            yield f"{part.note} The page shows them; they are in responses.jsonl of the evaluation."


def markdown_table(table: Table) -> str:
    """Models upright, constant answers in italics; pipes and line breaks do not end a cell."""
    heads = [table.lead, *(heading.full_text for heading in table.headings)]
    lines = [_line(heads), _line(["---", *("---:" for _ in table.headings)])]
    return "\n".join([*lines, *(_line([_name(row), *map(_cell, row.cells)]) for row in table.rows)])


def _name(row: Row) -> str:
    name = _one_line(row.name)
    return f"*{name}*" if row.kind == "anchor" else name


def _cell(cell: Cell) -> str:
    interval = f" ({cell.interval})" if cell.interval else ""
    return _one_line(cell.text) + cell.mark.replace("*", "\\*") + interval


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
