"""What the plan's runs say: the chosen rate, and the contrasts once all models are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev

from scipy.stats import t

from benchmarks.study.differences import Pair
from benchmarks.study.larger.plan import COUNTED_BASES, RATES, TUNED, TUNING_BASE
from benchmarks.study.planned.choice import one_model
from benchmarks.study.planned.runs import PlannedRun

Runs = Sequence[PlannedRun]


@dataclass(frozen=True)
class Contrast:
    """A difference in mean score over stage-1 models.

    Attributes:
        by_base: of each model that has both arms.
        difference: mean of them; NaN where there is none.
        low, high: Student's 95 % interval of it; NaN below two models.
    """

    by_base: dict[int, float]
    difference: float
    low: float
    high: float

    @property
    def is_whole(self) -> bool:
        """Whether all models that count are done."""
        return set(self.by_base) == set(COUNTED_BASES)

    @property
    def answer(self) -> str:
        """The plan's rule."""
        if not self.is_whole:
            return "not yet"
        if self.low > 0:
            return "higher"
        return "lower" if self.high < 0 else "open"

    @property
    def text(self) -> str:
        """The mean difference and its interval, as tables and sentences write them."""
        return f"{self.difference:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def tuning_scores(runs: Runs, size: str) -> dict[float, float]:
    """Mean score of the tuned arm on the model for tuning, by rate."""
    return {
        run.rate: run.score
        for run in one_model(runs)
        if (run.world, run.base, run.arm) == (size, TUNING_BASE, TUNED)
    }


def chosen_rate(runs: Runs, size: str) -> float | None:
    """The rate with the highest score, the lowest among equals; None while one is missing."""
    scores = tuning_scores(runs, size)
    if any(rate not in scores for rate in RATES):
        return None
    return max(RATES, key=lambda rate: (scores[rate], -rate))


def counted(runs: Runs, size: str) -> list[PlannedRun]:
    """The runs that count, at the chosen rate."""
    rate = chosen_rate(runs, size)
    return [
        run for run in one_model(runs) if run.world == size and run.base in COUNTED_BASES and run.rate == rate
    ]


def contrast(runs: Runs, size: str, pair: Pair) -> Contrast:
    """The first arm minus the second."""
    one, other = ({run.base: run.score for run in counted(runs, size) if run.arm == arm} for arm in pair)
    return contrast_of({base: one[base] - other[base] for base in sorted(one.keys() & other.keys())})


def contrast_of(by_base: dict[int, float]) -> Contrast:
    """Of the differences by base, the mean and its interval."""
    values = list(by_base.values())
    if not values:
        return Contrast({}, *[float("nan")] * 3)
    middle = mean(values)
    if len(values) < 2:
        return Contrast(by_base, middle, float("nan"), float("nan"))
    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return Contrast(by_base, middle, middle - half, middle + half)
