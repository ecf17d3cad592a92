"""Attacks on the leaderboard's models: python -m benchmarks.survival --seeds 3 --out DIR --results FILE.

DIR is a folder of `benchmarks.leaderboard`: worlds and learning rates are taken from it, and made where they
are missing. Each model, and each finished attack, is kept in DIR, so that the command, started again, does
what is missing; a copy of DIR goes on on another machine. FILE gets the scores of the seeds so far whenever
one is finished, and the table of the questions is printed. With --answer FILE the command only prints that
table.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.leaderboard.plan import PLAN
from benchmarks.study.worlds import WORLDS
from benchmarks.survival.answers import answers_table
from benchmarks.survival.plan import SEEDS
from benchmarks.survival.results import read_results, write_results
from benchmarks.survival.runs import Survival
from recipe.rerule.platform import PLATFORMS
from recipe.rerule.process import signals
from recipe.rerule.process.arguments import ArgumentParser, positive
from recipe.rerule.process.progress import Progress
from recipe.rerule.reporting import markdown


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is missing, write the result file, print the questions. 2 where something is wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.answer and not (options.out and options.results):
        parser.error("give --out DIR and --results FILE, or --answer FILE")
    try:
        scores = read_results(options.answer or _made(options))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(markdown.markdown_table(answers_table(scores), markdown.plain))
    return 0


def _made(options: argparse.Namespace) -> Path:
    """The result file, from attacks on all seeds. Raises ValueError and OSError."""
    options.results.parent.mkdir(parents=True, exist_ok=True)
    # As the leaderboard does, whose models these are to be.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    plan = replace(PLAN, world=options.world)
    seeds = range(plan.first_seed, plan.first_seed + options.seeds)
    total = Survival(plan, options.out, options.platform).missing(seeds)
    with signals.one_line(), Progress("survival", total, "steps") as progress:
        survival = Survival(plan, options.out, options.platform, progress)
        folders: dict[int, Path] = {}
        for seed in seeds:
            folders[seed] = survival.attack(seed)
            write_results(options.results, folders)
    return Path(options.results)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks.survival", description=__doc__)
    parser.add_argument("--seeds", type=positive, default=SEEDS, help="worlds (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="a folder of benchmarks.leaderboard")
    parser.add_argument("--results", type=Path, metavar="FILE", help="parquet file to write")
    parser.add_argument("--answer", type=Path, metavar="FILE", help="a result file: print its answers only")
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
