"""What the tables of docs/results.md are put together from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.study.runs import StudyRun
from recipe.rerule.reporting.document import Cell, Heading, Row, Table

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
