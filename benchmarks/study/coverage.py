"""How often the study's intervals hold where a seed in eight does not take off.

    python -m benchmarks.study.coverage benchmarks/study/results.parquet [--trials N] [--seed N]

Simulates a pair of arms from its differences in "many": on the share of seeds on which both arms took off, a
normal distribution with their mean and deviation; on the others the mean of those, with the same deviation.
Draws n seeds, makes the interval that `comparison.paired` makes, and counts how often it holds the mean of
this distribution. Prints a table. The same trials are made for the same seed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from benchmarks.study.arms import OURS
from benchmarks.study.comparison import expanded_level
from benchmarks.study.differences import Pair, name_of
from benchmarks.study.report import counted
from benchmarks.study.results import read_results
from benchmarks.study.tables import Runs, bare, of_world
from benchmarks.study.take_off import split_by_take_off
from recipe.rerule.evaluation.statistics.samples import Array
from recipe.rerule.reporting import markdown
from recipe.rerule.reporting.document import Heading, Row, Table, number_cell

WORLD = "many"
PAIRS: tuple[Pair, ...] = tuple(
    (arm, base) for arm in ("rerule", OURS) for base in ("rule", "random", "equal_updates")
)
"""In each of which the base does not take off on one seed, and the other arm does on all."""
SEEDS = (8, 12, 16, 24)
TRIALS = 2000
RESAMPLES = 2000
_AT_ONCE = 500


@dataclass(frozen=True)
class Mixture:
    """Differences between two arms: most around `middle`, a share `stuck` around `far`; both normal."""

    middle: float
    far: float
    deviation: float
    stuck: float

    @property
    def truth(self) -> float:
        """The mean."""
        return (1 - self.stuck) * self.middle + self.stuck * self.far

    def draw(self, generator: np.random.Generator, shape: tuple[int, int]) -> Array:
        """That many differences."""
        centres = np.where(generator.random(shape) < self.stuck, self.far, self.middle)
        return centres + generator.normal(0.0, self.deviation, shape)


def mixture_of(both: Sequence[float], others: Sequence[float]) -> Mixture:
    """From differences where both arms took off, and where not both did."""
    return Mixture(mean(both), mean(others), stdev(both), len(others) / (len(both) + len(others)))


def intervals(values: Array, resamples: Array) -> Array:
    """`comparison.paired`'s interval of each row of values [trials, seeds], as [2, trials].

    resamples: how often each resample draws each seed, over their number: [resamples, seeds].
    """
    level = expanded_level(values.shape[1])
    return np.quantile(values @ resamples.T, [(1 - level) / 2, (1 + level) / 2], axis=1)


@lru_cache(maxsize=256)
def coverage(mixture: Mixture, seeds: int, trials: int, seed: int) -> float:
    """The share of trials whose interval over so many seeds holds the mean."""
    generator = np.random.default_rng([seed, seeds])
    resamples = generator.multinomial(seeds, [1 / seeds] * seeds, RESAMPLES) / seeds
    held = 0
    for first in range(0, trials, _AT_ONCE):
        drawn = mixture.draw(generator, (min(_AT_ONCE, trials - first), seeds))
        low, high = intervals(drawn, resamples)
        held += int(((low <= mixture.truth) & (mixture.truth <= high)).sum())
    return held / trials


def coverage_table(runs: Runs, trials: int = TRIALS, seed: int = 0) -> Table:
    """Coverage of 95 % intervals, a row a pair of arms in WORLD and a column a number of seeds."""
    rows = []
    for pair in PAIRS:
        mixture = mixture_of(*split_by_take_off(of_world(runs, WORLD), pair))
        cells = (number_cell(coverage(mixture, seeds, trials, seed), ".2f") for seeds in SEEDS)
        rows.append(Row(name_of(pair), tuple(cells)))
    return bare([Heading(f"{seeds} seeds") for seeds in SEEDS], rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study.coverage", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("results", type=Path)
    parser.add_argument("--trials", type=int, default=TRIALS, help="a cell (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    options = parser.parse_args()
    if options.trials < 1 or options.seed < 0:
        sys.exit("error: --trials must be at least 1 and --seed at least 0")
    try:
        runs = counted(read_results(options.results))
    except ValueError as error:
        sys.exit(f"error: {error}")
    table = coverage_table(runs, options.trials, options.seed)
    print(markdown.markdown_table(table, markdown.plain))


if __name__ == "__main__":
    main()
