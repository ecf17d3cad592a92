"""Runs that take off and runs that do not: how many, and what arms gain where both do."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import binomtest

from benchmarks.study.arms import ARMS, COMPARED
from benchmarks.study.comparison import paired
from benchmarks.study.differences import Pair, compare_arms, difference_cell, name_of, value_pairs
from benchmarks.study.measures import OVERALL
from benchmarks.study.runs import StudyRun
from benchmarks.study.tables import Runs, Worlds, bare, code, of_arm
from recipe.rerule.reporting.document import DASH, Cell, Heading, Row, Table, number_cell

TAKEN_OFF = 0.5
"""Retain recall of greedy answers at the end from which on a run counts as having taken off."""


def took_off(run: StudyRun) -> bool:
    """Whether the run has learnt to answer half of what is kept by its end."""
    return run.final["retain/recall"] >= TAKEN_OFF


def share_cell(runs: Sequence[StudyRun]) -> Cell:
    """How many runs took off, with Clopper and Pearson's exact 95 % interval of the share."""
    count = sum(map(took_off, runs))
    low, high = binomtest(count, len(runs)).proportion_ci(0.95, "exact")
    return Cell(
        f"{count} of {len(runs)}", count / len(runs), f"{low:.2f} to {high:.2f}", (float(low), float(high))
    )


def share_table(worlds: Worlds) -> Table:
    """The share of each arm's runs that took off, a column a world."""
    shown = [arm for arm in ARMS if any(of_arm(runs, arm) for runs in worlds.values())]
    rows = []
    for arm in shown:
        own = [of_arm(runs, arm) for runs in worlds.values()]
        rows.append(Row(code(arm), tuple(share_cell(found) if found else DASH for found in own)))
    return bare([Heading(world) for world in worlds], rows, lead="arm")


def split_by_take_off(runs: Runs, pair: Pair) -> tuple[list[float], list[float]]:
    """Differences in mean score of a pair: on the starts where both arms took off, and on the others."""
    off = {(run.arm, run.seed, run.model) for run in runs if "retain/recall" in run.final and took_off(run)}
    both: list[float] = []
    others: list[float] = []
    for start, (one, other) in sorted(value_pairs(runs, *pair, OVERALL).items()):
        taken = all((arm, *start) in off for arm in pair)
        (both if taken else others).append(one - other)
    return both, others


def both_table(runs: Runs) -> Table:
    """What arms gain in mean score over all seeds, and over those on which both took off."""
    rows = []
    for pair in COMPARED:
        every, (both, _) = compare_arms(runs, *pair, OVERALL), split_by_take_off(runs, pair)
        if every:
            of_both = difference_cell(paired(both, [0.0] * len(both))) if len(both) > 1 else DASH
            counts = (number_cell(every.seeds, "d"), number_cell(len(both), "d"))
            rows.append(Row(name_of(pair), (difference_cell(every), counts[0], of_both, counts[1])))
    headings = (Heading("all seeds"), Heading("seeds"), Heading("both take off"), Heading("seeds"))
    return bare(headings, rows)
