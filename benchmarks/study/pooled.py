"""Differences over the seeds of several worlds together. They are exploratory: these worlds were chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
from scipy.stats import sem, t

from benchmarks.study.comparison import Paired, paired
from benchmarks.study.differences import Pair, name_of, value_pairs
from benchmarks.study.measures import OVERALL
from benchmarks.study.tables import Worlds, bare, interval_cell
from recipe.rerule.reporting.document import Heading, Row, Table, number_cell

EXTENDED = ("slow_other", "tofu")
"""The worlds that were given more seeds after the first ones had been looked at."""
SPEC = "+.4f"


@dataclass(frozen=True)
class Pooled:
    """A pair of arms over the seeds of several worlds.

    Attributes:
        over_seeds: with the bootstrap's interval, as the other tables have.
        student: Student's t interval over the same differences.
        over_models: mean difference of each stage-1 model, by world and model.
        models: mean of these and its t interval: with the stage-1 model as the unit.
    """

    over_seeds: Paired
    student: tuple[float, float]
    over_models: dict[tuple[str, str], float]
    models: tuple[float, float, float]


def pool(worlds: Worlds, pair: Pair, names: Sequence[str] = EXTENDED) -> Pooled:
    """A pair's differences in mean score over all starts of these worlds."""
    values = {world: value_pairs(worlds[world], *pair, OVERALL) for world in names}
    every = [both for of_world in values.values() for both in of_world.values()]
    by_model = dict[tuple[str, str], list[float]]()
    for world, of_world in values.items():
        for (_, model), (one, other) in of_world.items():
            by_model.setdefault((world, model), []).append(one - other)
    means = {model: mean(found) for model, found in by_model.items()}
    differences = [one - other for one, other in every]
    return Pooled(
        paired(*zip(*every, strict=True)),
        student_interval(differences),
        means,
        (mean(means.values()), *student_interval(list(means.values()))),
    )


def student_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Student's t interval of a mean; needs two values at least."""
    half = float(t.ppf((1 + level) / 2, len(values) - 1) * sem(values))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def pooled_table(worlds: Worlds, pairs: Sequence[Pair]) -> Table:
    """A row a pair."""
    rows = []
    for pair in pairs:
        found = pool(worlds, pair)
        whole = found.over_seeds
        cells = (
            number_cell(whole.seeds, "d"),
            interval_cell(whole.difference, whole.low, whole.high, SPEC),
            interval_cell(whole.difference, *found.student, SPEC),
            number_cell(len(found.over_models), "d"),
            interval_cell(*found.models, SPEC),
        )
        rows.append(Row(name_of(pair), cells))
    headings = ("seeds", "over seeds, bootstrap", "over seeds, Student's t", "stage-1 models", "over models")
    return bare([Heading(heading) for heading in headings], rows)
