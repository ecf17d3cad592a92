"""The scoreboard's tables, made from its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from benchmarks.leaderboard.methods import METHODS as KNOWN
from benchmarks.leaderboard.table import rate_of
from benchmarks.scoreboard.comparison import FEWEST, beaten_by, difference, is_better
from benchmarks.scoreboard.plan import AXES, BASE, COSTS, FRONTS, LEVEL, NEVER_KNEW, Axis
from benchmarks.scoreboard.results import Results
from benchmarks.study.pooled import student_interval
from recipe.rerule.reporting.document import DASH, Cell, Heading, Row, Table, number_cell

COMPARED = "rule"
"""With which every other method is compared, number by number."""
CLEAR = "*"
"""Marks a difference whose interval excludes 0."""
ON_FRONT = "on the front"
_THOUSANDS = 1e-3


def score_table(found: Results) -> Table:
    """A row a method: means over worlds with Student's 95 % interval over worlds, and the cost."""
    headings = (
        Heading("worlds"),
        Heading("learning rate"),
        *(Heading(axis.label, "", axis.aim) for axis in AXES),
        *map(Heading, COSTS.values()),
    )
    return Table(
        "scoreboard",
        "Methods, their recall and what attacks bring back",
        "method",
        headings,
        tuple(_row(found, method) for method in _ordered(found)),
        f"Means over worlds with Student's {LEVEL:.0%} interval over worlds. E is the score under an attack "
        f"less that of {NEVER_KNEW} under the same attack.",
    )


def front_table(found: Results) -> Table:
    """A row a method: for each pair of numbers, whether it is on the front, or which methods beat it."""
    competing = [method for method in _ordered(found) if not _is_reference(method)]
    return Table(
        "fronts",
        "Which methods no other method beats",
        "method",
        tuple(Heading(" and ".join(axis.label for axis in front)) for front in FRONTS),
        tuple(
            Row(method, tuple(_place(beaten_by(found, method, competing, front)) for front in FRONTS))
            for method in competing
        ),
        "One method beats another if it is better on one of the two numbers and the other is better on none. "
        "Better means that the paired interval over worlds excludes 0. The intervals are not corrected for "
        "their number.",
    )


def difference_table(found: Results) -> Table:
    """A row a method: each number less that of COMPARED on the same world; marked where they differ."""
    methods = [method for method in _ordered(found) if method != COMPARED]
    return Table(
        "differences",
        f"Differences from {COMPARED}",
        "method",
        tuple(Heading(axis.label, "", axis.aim) for axis in AXES),
        tuple(Row(m, tuple(_difference(found, m, axis) for axis in AXES), _kind(m)) for m in methods),
        f"Each number less that of {COMPARED} on the same world, with Student's {LEVEL:.0%} interval over "
        "worlds; * where the interval excludes 0. The intervals are not corrected for their number.",
    )


def worlds_of(found: Results) -> list[int]:
    """Seeds of the worlds."""
    return sorted({seed for _, seed in found.runs})


def _ordered(found: Results) -> list[str]:
    """In the order of the leaderboard, methods of one's own after them."""
    order = list(KNOWN)
    return sorted(found.methods, key=lambda method: order.index(method) if method in order else len(order))


def _is_reference(method: str) -> bool:
    return method in (BASE, NEVER_KNEW)


def _kind(method: str) -> str:
    return "anchor" if _is_reference(method) else "model"


def _row(found: Results, method: str) -> Row:
    runs = [run for (name, _), run in found.runs.items() if name == method]
    rates = sorted({rate for run in runs if (rate := rate_of(run)) is not None})
    cells = (
        number_cell(len(runs), "d"),
        Cell(" ".join(f"{rate:g}" for rate in rates)) if rates else DASH,
        *(_mean(found.values(method, axis)) for axis in AXES),
        *(_cost([run.final for run in runs], name) for name in COSTS),
    )
    return Row(method, cells, _kind(method))


def _mean(values: Mapping[int, float]) -> Cell:
    numbers = list(values.values())
    if len(numbers) < FEWEST:
        return number_cell(numbers[0] if numbers else None, ".3f")
    low, high = student_interval(numbers, LEVEL)
    return Cell(f"{mean(numbers):.3f}", mean(numbers), f"{low:.3f} to {high:.3f}", (low, high))


def _cost(finals: Sequence[Mapping[str, float]], name: str) -> Cell:
    values = [final[name] * (1 if name == "seconds" else _THOUSANDS) for final in finals if name in final]
    return number_cell(mean(values), ".0f") if values else DASH


def _place(beaten: Sequence[str]) -> Cell:
    return Cell(f"beaten by {', '.join(beaten)}" if beaten else ON_FRONT)


def _difference(found: Results, method: str, axis: Axis) -> Cell:
    measured = difference(found, method, COMPARED, axis)
    if measured is None:
        return DASH
    value, low, high = measured
    clear = is_better(found, method, COMPARED, axis) or is_better(found, COMPARED, method, axis)
    interval = f"{low:+.3f} to {high:+.3f}"
    return Cell(f"{value:+.3f}", value, interval, (low, high), CLEAR if clear else "")
