"""Attacks on the planned study's final models: python -m benchmarks.study.attacked --out DIR --results FILE

The models are those of the world `many` in the runs of `--runs` (default: the committed ones), on the bases
that count. Worlds, models and finished attacks are kept in DIR: started again, the command does what is
missing. FILE gets the scores of a base as soon as it is done, and keeps those of other bases. Several
processes or machines can take different bases. The runs must have been made on this machine, or on one that
trains the same models; the command says where it does not. Set OMP_NUM_THREADS=1, as for these runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.study.attacked.plan import BASES
from benchmarks.study.attacked.results import write
from benchmarks.study.attacked.runs import Attacks, attacked_runs
from benchmarks.study.planned.results import read_results
from recipe.rerule.platform import PLATFORMS
from recipe.rerule.process import signals
from recipe.rerule.process.arguments import ArgumentParser
from recipe.rerule.process.progress import Progress

RUNS = Path("benchmarks/study/planned.parquet")


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack what was not attacked yet. 2 where something is wrong."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        _attack(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _attack(options: argparse.Namespace) -> None:
    runs = read_results(options.runs)
    for base in options.bases:
        attacked_runs(runs, base)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with signals.one_line(), Progress("attacks", len(options.bases), "bases") as progress:
        made = Attacks(runs, options.out, options.platform, progress=progress)
        for base in options.bases:
            folder = made.attack(base)
            write(options.results, {base: folder}, {base: attacked_runs(runs, base)["rule"].model})
            print(f"base {base}: {folder}", flush=True)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks.study.attacked", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="worlds, models and attacks")
    parser.add_argument("--results", type=Path, required=True, metavar="FILE", help="parquet file to write")
    parser.add_argument("--runs", type=Path, default=RUNS, metavar="FILE", help="default: %(default)s")
    parser.add_argument(
        "--bases", type=int, nargs="+", choices=BASES, default=BASES, metavar="BASE", help="default: all"
    )
    parser.add_argument("--platform", choices=PLATFORMS, default="cpu", help="default: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
