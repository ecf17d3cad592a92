"""Methods on the embedded world: python -m benchmarks.leaderboard --methods rule npo_gdr --seeds 3 --out DIR.

Each method is tried at every learning rate of the plan on a world for tuning, and then run at the best of
them on N other worlds, each with a base model of its own. Each run is kept in DIR/WORLD/runs as it ends;
started again, the command does what is missing. Several commands may share a DIR once its worlds are made,
each with other methods. `python -m benchmarks.study.results pack DIR FILE` (or unpack) moves the runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.leaderboard import own
from benchmarks.leaderboard.methods import METHODS
from benchmarks.leaderboard.plan import PLAN, Plan
from benchmarks.leaderboard.runs import Leaderboard, tuning_runs
from benchmarks.leaderboard.table import leaderboard_table, tuning_table
from benchmarks.study.runs import StudyRun
from benchmarks.study.worlds import WORLDS
from recipe.rerule.process.progress import Progress
from recipe.rerule.reporting import markdown

_WORLDS = [name for name, world in WORLDS.items() if world.tofu is None]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing and print the tables."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    plan = replace(PLAN, world=options.world)
    seeds = range(plan.first_seed, plan.first_seed + options.seeds)
    try:
        methods = [own.register(method) for method in options.methods]
        runs = _run(plan, methods, seeds, options.out)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    for table in (tuning_table(runs, plan), leaderboard_table(runs, plan)):
        print(markdown.markdown_table(table, markdown.plain), end="\n\n")


def _run(plan: Plan, methods: Sequence[str], seeds: Sequence[int], out: Path) -> list[StudyRun]:
    """All runs of these methods, those for tuning too."""
    total = Leaderboard(plan, out).missing(methods, seeds)
    with Progress("leaderboard", total, "runs") as progress:
        board = Leaderboard(plan, out, progress)
        counted = board.compare(methods, seeds)
        return [*(board.run(run) for run in tuning_runs(plan, methods)), *counted]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leaderboard", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--methods", nargs="+", default=list(METHODS), metavar="METHOD",
        help=f"of {', '.join(METHODS)} (default: all these), NAME=FOLDER or NAME=MODULE "
        "(benchmarks/leaderboard/own.py)",
    )  # fmt: skip
    parser.add_argument("--seeds", type=_count, default=3, help="worlds that count (default: %(default)s)")
    parser.add_argument(
        "--world", choices=_WORLDS, default=PLAN.world,
        help="sizes of the worlds; micro tries the command in minutes (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


if __name__ == "__main__":
    main()
