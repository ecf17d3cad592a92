"""Whether one method is better than another: differences of their mean scores on the same worlds."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean

from benchmarks.leaderboard.measures import score
from benchmarks.leaderboard.methods import METHODS
from benchmarks.leaderboard.plan import Plan
from benchmarks.leaderboard.table import evaluated, method_of
from benchmarks.study.pooled import student_interval
from benchmarks.study.tables import Runs, bare, code
from recipe.rerule.reporting.document import DASH, Cell, Heading, Row, Table

COMPARED = ("rule", "quantile_newest", "po")
"""With which each method is compared: RULE, the recommended replay, and preference optimisation."""


def difference_table(runs: Runs, plan: Plan) -> Table:
    """A row a method: its mean score less that of each of COMPARED on the same world, mean over worlds.

    With Student's 95 % interval over worlds; bold where it excludes 0. A dash where fewer than two are
    shared.
    """
    scores: dict[str, dict[int, float]] = {}
    for run in evaluated(runs, plan):
        scores.setdefault(method_of(run), {})[run.seed] = score(run.final)
    rows = [
        Row(code(method), tuple(_difference(scores[method], scores.get(other, {})) for other in COMPARED))
        for method in METHODS
        if method in scores
    ]
    return bare([Heading(f"minus {code(other)}") for other in COMPARED], rows, lead="method")


def _difference(one: Mapping[int, float], other: Mapping[int, float]) -> Cell:
    """Of two methods' scores by world."""
    values = [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]
    if len(values) < 2 or one is other:
        return DASH
    low, high = student_interval(values)
    text = f"{mean(values):+.3f}"
    is_clear = low > 0 or high < 0
    return Cell(f"**{text}**" if is_clear else text, mean(values), f"{low:+.3f} to {high:+.3f}", (low, high))
