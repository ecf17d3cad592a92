"""An arm against a cheaper one at the compute that the cheaper one cost."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

import numpy as np

from benchmarks.study.comparison import Paired, paired
from benchmarks.study.differences import difference_cell, models_in_words
from benchmarks.study.measures import Start, validated_scores
from benchmarks.study.runs import StudyRun
from benchmarks.study.tables import Runs, Worlds, bare, of_arm
from recipe.rerule.evaluation.statistics.samples import Array
from recipe.rerule.reporting.document import Heading, Row, Table, number_cell

GRID = 200
"""Points between the first validation and the cheaper run's last one, over which scores are averaged."""


@dataclass(frozen=True)
class AtEqualCompute:
    """An arm and a cheaper one on the same seeds, by their scores at the validations.

    Attributes:
        last: the arm's score, interpolated to the compute of the cheaper run's last validation, minus that
            run's score there.
        during: the same for the mean score from the arm's first validation to that compute.
        compute, cheaper_compute: what the runs cost in all, mean over the seeds, in millions of tokens.
        starts: seeds and stage-1 models.
    """

    last: Paired
    during: Paired
    compute: float
    cheaper_compute: float
    starts: tuple[Start, ...]


def at_equal_compute(runs: Runs, arm: str, cheaper: str) -> AtEqualCompute | None:
    """The two arms over the starts that both have; None with fewer than two of these."""
    mine, theirs = ({(run.seed, run.model): run for run in of_arm(runs, name)} for name in (arm, cheaper))
    starts = tuple(sorted(mine.keys() & theirs.keys()))
    if len(starts) < 2:
        return None
    lines = [(score_by_compute(mine[start]), score_by_compute(theirs[start])) for start in starts]
    ends = [(np.interp(low[0][-1], *line), low[1][-1]) for line, low in lines]
    means = [mean_until_last(line, low) for line, low in lines]
    return AtEqualCompute(
        paired(*zip(*ends, strict=True)),
        paired(*zip(*means, strict=True)),
        mean(mine[start].final["compute"] for start in starts) / 1e6,
        mean(theirs[start].final["compute"] for start in starts) / 1e6,
        starts,
    )


def score_by_compute(run: StudyRun) -> tuple[Array, Array]:
    """Compute up to each validation, in tokens, and the mean score there."""
    steps = [int(step) for step in run.curves["validated_at"]]
    return np.array([run.curves["compute"][step - 1] for step in steps]), np.array(validated_scores(run))


def mean_until_last(line: tuple[Array, Array], low: tuple[Array, Array]) -> tuple[float, float]:
    """Mean scores of both lines from the first one's first validation to the second one's last."""
    at = np.linspace(line[0][0], low[0][-1], GRID)
    return float(np.interp(at, *line).mean()), float(np.interp(at, *low).mean())


def equal_compute_table(worlds: Worlds, arm: str, cheaper: str) -> Table:
    """A row a world in which both arms were run."""
    rows = []
    for world, runs in worlds.items():
        if found := at_equal_compute(runs, arm, cheaper):
            costs = (number_cell(value, ".2f") for value in (found.compute, found.cheaper_compute))
            cells = (*costs, difference_cell(found.last), difference_cell(found.during))
            rows.append(Row(f"{world} ({models_in_words([found.starts])})", cells))
    headings = (
        Heading(f"M tokens, {arm}"),
        Heading(f"M tokens, {cheaper}"),
        Heading("mean score at equal compute, difference"),
        Heading("mean over training up to there, difference"),
    )
    return bare(headings, rows)
