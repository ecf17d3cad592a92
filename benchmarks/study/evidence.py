"""In how many worlds a difference is told apart from 0."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.study.arms import COMPARED
from benchmarks.study.differences import Pair, compare_arms, name_of
from benchmarks.study.measures import ON_THE_WAY, OVERALL
from benchmarks.study.tables import Worlds, bare
from recipe.rerule.reporting.document import Cell, Heading, Row, Table


def worlds_above(worlds: Worlds, pair: Pair, measure: str, sign: int = 1) -> list[str]:
    """The worlds in which the 95 % interval of a pair's difference lies above 0; below it with sign -1."""
    found = ((world, compare_arms(runs, *pair, measure)) for world, runs in worlds.items())
    return [world for world, each in found if each and min(sign * each.low, sign * each.high) > 0]


def verdict_table(worlds: Worlds) -> Table:
    """Each pair that a question is about: the worlds whose interval excludes 0, by measure and sign."""
    rows = []
    for pair in COMPARED:
        cells = [
            Cell(in_words(worlds_above(worlds, pair, measure, sign), len(worlds)))
            for measure in (OVERALL, ON_THE_WAY)
            for sign in (1, -1)
        ]
        rows.append(Row(name_of(pair), tuple(cells)))
    measures = ("mean score", "mean over training")
    return bare([Heading(side, name) for name in measures for side in ("above 0", "below 0")], rows)


def in_words(names: Sequence[str], of: int) -> str:
    """How many of the worlds, and which."""
    return f"{len(names)} of {of}: {', '.join(names)}" if names else "none"
