"""Methods with attacks: python -m benchmarks.scoreboard --methods rule npo_gdr --out DIR --results FOLDER

Trains each method at its own learning rate on every world, measures it, and attacks it with the quick budget
of `evaluate attack`, together with the base model and the never-knew model. DIR is a folder of
`benchmarks.leaderboard`: learning rates that were tried in it are used again. FOLDER gets the results of each
world as it is finished. A world of which FOLDER already has all these methods is not run again, on whatever
machine it was made. Started again, the command does what is missing.

A method of your own is NAME=FOLDER, with a model folder FOLDER/seed-N for each world, or NAME=package.module,
a module with train(start, learning_rate, seed) (benchmarks/leaderboard/own.py). --worlds-only only makes the
worlds, whose rows and models are then in DIR/WORLD/seed-N/world, and prints these folders, one a line.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.leaderboard import own
from benchmarks.leaderboard.plan import PLAN, Plan
from benchmarks.leaderboard.starts import prepare
from benchmarks.scoreboard import results
from benchmarks.scoreboard.plan import FIRST_SEED, METHODS, SEEDS
from benchmarks.scoreboard.runs import Scoreboard, scoreboard
from benchmarks.scoreboard.tables import front_table, score_table
from benchmarks.study.worlds import WORLDS
from recipe.rerule.platform import PLATFORMS
from recipe.rerule.process import signals
from recipe.rerule.process.arguments import ArgumentParser, positive
from recipe.rerule.process.progress import Progress
from recipe.rerule.reporting import markdown


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is missing and print the tables. 2 where something is wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not (options.results or options.worlds_only):
        parser.error("give --results FOLDER, or --worlds-only")
    # As the leaderboard does.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    plan = replace(PLAN, world=options.world)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    try:
        methods = list(dict.fromkeys(own.register(method) for method in options.methods))
        if options.worlds_only:
            _make_worlds(plan, seeds, options.out)
            return 0
        with redirect_stdout(sys.stderr):  # standard output has the tables alone
            _run(plan, methods, seeds, options)
        found = results.read(options.results)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for table in (score_table(found), front_table(found)):
        print(markdown.markdown_table(table, markdown.plain), end="\n\n")
    return 0


def _make_worlds(plan: Plan, seeds: Sequence[int], out: Path) -> None:
    with signals.one_line(), Progress("worlds", len(seeds), "worlds") as progress:
        for seed in seeds:
            with redirect_stdout(sys.stderr):  # standard output has the folders alone
                start = prepare(WORLDS[plan.world], seed, out / plan.world / f"seed-{seed}")
            progress.advance()
            print(start.folder)


def _run(plan: Plan, methods: Sequence[str], seeds: Sequence[int], options: argparse.Namespace) -> None:
    """Raises ValueError and OSError."""

    def board(progress: Progress) -> Scoreboard:
        return scoreboard(plan, methods, options.out, options.platform, progress)

    left = [seed for seed in seeds if seed not in results.finished(options.results, methods)]
    total = board(Progress("scoreboard")).missing(left)
    with signals.one_line(), Progress("scoreboard", total, "steps") as progress:
        of_all = board(progress)
        for seed in left:
            attacks = of_all.attack(seed)
            results.add(options.results, seed, of_all.measured(seed), attacks)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks.scoreboard", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--methods", nargs="+", default=list(METHODS), metavar="METHOD",
        help=f"methods of the leaderboard, NAME=FOLDER or NAME=MODULE (default: {', '.join(METHODS)})",
    )  # fmt: skip
    parser.add_argument("--seeds", type=positive, default=SEEDS, help="worlds (default: %(default)s)")
    parser.add_argument(
        "--first-seed", type=positive, default=FIRST_SEED, metavar="N", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="a folder of benchmarks.leaderboard"
    )
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="folder of the result files")
    parser.add_argument(
        "--worlds-only", action="store_true", help="only make the worlds and print their folders"
    )
    parser.add_argument("--platform", choices=PLATFORMS, default="cpu", help="default: %(default)s")
    parser.add_argument(
        "--world",
        choices=[name for name, world in WORLDS.items() if world.tofu is None],
        default=PLAN.world,
        help="sizes of the worlds; micro tries the command (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
