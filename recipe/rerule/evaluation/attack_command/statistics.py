"""From readings to numbers with facts as the unit: scores, their differences, and shares of knowledge."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from recipe.rerule.evaluation.attacks.material import FORGET, SCORE, Material, Reading, Values
from recipe.rerule.evaluation.summary import (
    LEAST_FACTS,
    Array,
    Samples,
    Statistic,
    bootstrap,
    percentile_interval,
    permutation_test,
    sets_of,
)

FEWEST_FACTS = LEAST_FACTS
"""With fewer there are no intervals and no tests."""
RESAMPLES, PERMUTATIONS, SEED, LEVEL = 2000, 9999, 0, 0.95
Interval = tuple[float, float]


class Facts:
    """Which fact each unit of a reading stands for."""

    def __init__(self, material: Material) -> None:
        asked = (*material.asked, *material.retained)
        self._facts = {one.probe.index: material.fact(one.probe) for one in asked}

    def means(self, values: Values) -> dict[Hashable, float]:
        """The mean of each fact's units, in the order of their first units. A text is a fact of its own."""
        found: dict[Hashable, list[float]] = {}
        for unit, value in values.items():
            found.setdefault(self._facts[unit] if isinstance(unit, int) else unit, []).append(value)
        return {fact: float(np.mean(of_fact)) for fact, of_fact in found.items()}

    def mean(self, values: Values | None) -> float | None:
        """The mean over facts; None of nothing."""
        return float(np.mean(list(self.means(values).values()))) if values else None

    def samples(self, readings: Sequence[Reading]) -> list[Samples]:
        """The readings as arrays, all over the same facts in the same order: those of the first reading.

        Raises:
            ValueError: the readings are not of the same facts.
        """
        means = [{name: self.means(values) for name, values in reading.items()} for reading in readings]
        first = means[0]
        if any({n: set(v) for n, v in one.items()} != {n: set(v) for n, v in first.items()} for one in means):
            raise ValueError("an attack scored other facts of one model than of another")
        return [
            {name: {SCORE: np.array([one[name][fact] for fact in order])} for name, order in first.items()}
            for one in means
        ]


@dataclass(frozen=True)
class Score:
    """The score of one model: a statistic of its scores over facts."""

    samples: Samples
    statistic: Statistic

    @cached_property
    def value(self) -> float:
        """The statistic."""
        return float(self.statistic(self.samples))

    @cached_property
    def draws(self) -> Array | None:
        """The statistic in each resample of the facts: the same facts for all models. None of too few."""
        used = sets_of(self.statistic, self.samples)
        if any(len(self.samples[name][SCORE]) < FEWEST_FACTS for name in used):
            return None
        return bootstrap(self.samples, {SCORE: self.statistic}, RESAMPLES, SEED)[SCORE]

    @property
    def interval(self) -> Interval | None:
        """The bootstrap interval; None where there are too few facts."""
        return None if self.draws is None else percentile_interval(self.draws, self.value, LEVEL)


@dataclass(frozen=True)
class Difference:
    """The score of `a` minus that of `b`, over the same facts."""

    a: Score
    b: Score

    @property
    def value(self) -> float:
        """The difference."""
        return self.a.value - self.b.value

    @property
    def draws(self) -> Array | None:
        """The difference in each resample of the facts."""
        return None if self.a.draws is None or self.b.draws is None else self.a.draws - self.b.draws

    @property
    def interval(self) -> Interval | None:
        """The paired bootstrap interval; None where there are too few facts."""
        return None if self.draws is None else percentile_interval(self.draws, self.value, LEVEL)

    def p_value(self) -> float | None:
        """Of the paired permutation test over facts, two-sided; None where there are too few facts."""
        if self.draws is None:
            return None
        statistics = {SCORE: self.a.statistic}
        return permutation_test(self.a.samples, self.b.samples, statistics, PERMUTATIONS, SEED)[SCORE]


def share(part: Difference, whole: Difference) -> tuple[float, Interval] | None:
    """The excess of a model by that of the original one, with its bootstrap interval.

    None where the interval of the whole holds 0, or there are too few facts: a share of nothing has no
    meaning.
    """
    if whole.interval is None or whole.interval[0] <= 0 <= whole.interval[1]:
        return None
    low, high = np.nanquantile(share_draws(part, whole), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    if not np.isfinite([low, high]).all():
        return None
    return part.value / whole.value, (float(low), float(high))


def share_draws(part: Difference, whole: Difference) -> Array:
    """The share in each resample; infinite or NaN where the whole is 0. There must be facts enough."""
    assert part.draws is not None
    assert whole.draws is not None
    with np.errstate(divide="ignore", invalid="ignore"):
        return part.draws / whole.draws


def restricted(reading: Reading, to: Reading) -> dict[str, dict[Any, float]]:
    """The scores of a reading, of the units alone that another reading has."""
    return {FORGET: {unit: reading[FORGET][unit] for unit in to[FORGET]}}


def comparable(before: Mapping[str, Values], after: Reading) -> bool:
    """Whether every unit of a reading has a score before the attack."""
    return set(after.get(FORGET, {})) <= set(before.get(FORGET, {}))
