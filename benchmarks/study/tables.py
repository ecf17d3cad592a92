"""What the tables of docs/results.md are put together from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from benchmarks.study.runs import StudyRun
from recipe.rerule.reporting import markdown
from recipe.rerule.reporting.document import Cell, Heading, Row, Table

_Found = TypeVar("_Found")
Runs = Sequence[StudyRun]
Worlds = Mapping[str, Runs]
"""The runs that count, by world."""


def bare(headings: Sequence[Heading], rows: Sequence[Row], lead: str = "") -> Table:
    """A table that stands in a text, which explains it."""
    return Table("", "", lead, tuple(headings), tuple(rows), "")


def of_world(runs: Runs, world: str) -> list[StudyRun]:
    """The runs of a world."""
    return [run for run in runs if run.world == world]


def of_arm(runs: Runs, arm: str) -> list[StudyRun]:
    """The runs of an arm."""
    return [run for run in runs if run.arm == arm]


def code(arm: str) -> str:
    """An arm's name as code."""
    return f"`{arm}`"


def interval_cell(middle: float, low: float, high: float, spec: str = "+.3f") -> Cell:
    """A number with its interval, all as `spec` formats them."""
    return Cell(format(middle, spec), middle, f"{low:{spec}} to {high:{spec}}", (low, high))


def in_markdown(name: str, tables: Mapping[str, Callable[[], Table]], empty: str) -> str:
    """One of these tables, in Markdown; `empty` where it has no rows.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in tables:
        raise ValueError(f"no table is named {name!r}; there are {', '.join(tables)}")
    table = tables[name]()
    return markdown.markdown_table(table, markdown.plain) if table.rows else empty


def made_of(tables: Mapping[str, Callable[[_Found], Table]], found: _Found) -> dict[str, Callable[[], Table]]:
    """The same tables, each to be made of what was found."""
    return {name: partial(table, found) for name, table in tables.items()}
