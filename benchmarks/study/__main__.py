"""Arms x seeds on a world: python -m benchmarks.study --arms rule rerule --seeds 2 --out DIR.

Each run is kept in DIR/WORLD/runs as it ends, with its settings and commit; started again, the command does
what is missing. Several commands may share a DIR once its world is built, one a core. Prints the means over
the seeds and, of each arm against the first, the mean of the paired differences with its interval.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import torch

from benchmarks.study.arms import ARMS
from benchmarks.study.comparison import FEWEST_FOR_INTERVAL, paired
from benchmarks.study.runs import Runs, shortened, study
from benchmarks.study.worlds import WORLDS

COLUMNS = {
    "forget/recall": "forget recall",
    "retain/recall": "retain recall",
    "retain_unseen/recall": "unseen recall",
    "retain_unseen/refused": "unseen refused",
    "early_hard/retain": "early-hard reward",
    "compute": "compute",
}
_WIDTH = 26


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["rule", "rerule"], metavar="ARM")
    parser.add_argument("--seeds", type=int, default=2, help="how many, from --first-seed on (default: 2)")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--world", choices=WORLDS, default="many")
    parser.add_argument("--steps", type=int, help="fewer steps than the world's, for a short form")
    parser.add_argument("--tofu", type=Path, metavar="FOLDER", help="TOFU's files, for its world")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    world = shortened(WORLDS[options.world], options.steps)
    try:
        runs = study(options.world, world, options.arms, seeds, options.out, options.tofu)
    except ValueError as error:
        sys.exit(f"error: {error}")
    print_table(runs, options.arms, seeds)


def print_table(runs: Runs, arms: Sequence[str], seeds: Sequence[int]) -> None:
    """Means over the seeds, and below them the paired differences to the first arm."""
    print(f"{'':{_WIDTH}}" + "".join(f"{title:>{_WIDTH}}" for title in COLUMNS.values()))
    for arm in arms:
        cells = [number(mean(values_of(runs, arm, name, seeds))) for name in COLUMNS]
        print(f"{arm:{_WIDTH}}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells))
    for arm in arms[1:]:
        cells = [difference(runs, arm, arms[0], name, seeds) for name in COLUMNS]
        print(f"{arm + ' - ' + arms[0]:{_WIDTH}}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells))


def values_of(runs: Runs, arm: str, name: str, seeds: Sequence[int]) -> list[float]:
    """A measure by seed; NaN where a run does not have it."""
    return [runs[arm, seed].final.get(name, float("nan")) for seed in seeds]


def difference(runs: Runs, arm: str, base: str, name: str, seeds: Sequence[int]) -> str:
    """The paired difference, with its interval where seeds suffice; a dash where a run lacks it."""
    try:
        found = paired(values_of(runs, arm, name, seeds), values_of(runs, base, name, seeds))
    except ValueError:
        return "–"
    if found.seeds < FEWEST_FOR_INTERVAL:
        return number(found.difference)
    return f"{number(found.difference)} [{number(found.low)}, {number(found.high)}]"


def number(value: float) -> str:
    """Three decimals, or none where there are hundreds."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3f}"


if __name__ == "__main__":
    main()
