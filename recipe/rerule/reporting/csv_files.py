"""A table as CSV, with unrounded numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from recipe.rerule.reporting.document import Cell, Row, Table


def csv_text(table: Table) -> str:
    """One line a row: name, kind, then each column; a column with intervals has two more, with its ends.

    Text cells are written as they are, missing numbers as nothing.
    """
    with_bounds = [any(row.cells[place].bounds for row in table.rows) for place in range(len(table.headings))]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([table.lead, "kind", *_heads(table, with_bounds)])
    writer.writerows([row.name, row.kind, *_values(row, with_bounds)] for row in table.rows)
    return file.getvalue()


def _heads(table: Table, with_bounds: list[bool]) -> Iterator[str]:
    for heading, bounded in zip(table.headings, with_bounds, strict=True):
        name = f"{heading.group} {heading.label}".strip()
        yield name
        if bounded:
            yield f"{name} low"
            yield f"{name} high"


def _values(row: Row, with_bounds: list[bool]) -> Iterator[str]:
    for cell, bounded in zip(row.cells, with_bounds, strict=True):
        yield _value(cell)
        if bounded:
            yield from map(repr, cell.bounds) if cell.bounds else ("", "")


def _value(cell: Cell) -> str:
    if cell.value is not None:
        return repr(cell.value)
    return "" if cell.text == "–" else cell.text
