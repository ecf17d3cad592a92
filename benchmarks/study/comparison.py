"""Two arms on the same seeds: how much they differ, how sure that is, and how large beside the spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from statistics import NormalDist

import numpy as np
from scipy.stats import t

from recipe.rerule.evaluation.statistics.comparison import compare
from recipe.rerule.evaluation.statistics.samples import mean_of

RESAMPLES = 20_000
FEWEST_FOR_INTERVAL = 5
"""Seeds below which no interval is shown: resamples of so few values never leave their range."""
_SET, _VALUE = "seeds", "value"


@dataclass(frozen=True)
class Paired:
    """A measure of an arm minus that of another, over the seeds both have.

    Attributes:
        difference: mean over the seeds.
        low, high: 95 % bootstrap interval of it.
        p_value: of the exact permutation test over the seeds, two-sided, not corrected. With n seeds it is
            at least 2 / 2**n.
        effect: the mean difference in standard deviations of the differences (Cohen's d of pairs); NaN where
            they are all equal, or there is one seed.
        seeds: how many.
    """

    difference: float
    low: float
    high: float
    p_value: float
    effect: float
    seeds: int


def paired(arm: Sequence[float], base: Sequence[float]) -> Paired:
    """Compare the values of two arms, in the same order of seeds.

    Raises:
        ValueError: different lengths, no seed, or a value that is not finite.
    """
    return _paired(tuple(map(float, arm)), tuple(map(float, base)), RESAMPLES)


@lru_cache(maxsize=4096)
def _paired(arm: tuple[float, ...], base: tuple[float, ...], resamples: int) -> Paired:
    """Remembered, since several tables and sentences are about the same pairs."""
    a, b = np.asarray(arm), np.asarray(base)
    found = compare(
        {_SET: {_VALUE: a}},
        {_SET: {_VALUE: b}},
        {_VALUE: mean_of(_VALUE, [_SET])},
        resamples=resamples,
        level=expanded_level(len(a)),
    )[_VALUE]
    differences = a - b
    spread = float(differences.std(ddof=1)) if len(a) > 1 else 0.0
    effect = found.difference / spread if spread > 0 else float("nan")
    return Paired(found.difference, found.low, found.high, found.p_value, effect, len(a))


def expanded_level(seeds: int, level: float = 0.95) -> float:
    """The level whose percentile interval covers as often as `level` asks with so few seeds.

    The bootstrap of a mean is too narrow by sqrt((n - 1) / n) and takes the normal distribution's tails for
    Student's: the percentiles are moved out by both (Hesterberg, "What teachers should know about the
    bootstrap", The American Statistician 69, 2015, section 3.3).
    """
    if seeds < 2:
        return level
    distance = sqrt(seeds / (seeds - 1)) * t.ppf((1 + level) / 2, seeds - 1)
    return min(1 - 2 * NormalDist().cdf(-distance), 1 - 1e-9)
