"""The larger world's study: python -m benchmarks.study.larger base|run|table|pack|unpack|time ...

    base    train the base models that are missing, and print their fingerprints
    run     make the runs that are missing: those that choose the rate, then every arm on each model
    table   print the tables of what is kept
    pack    write all kept runs into one file; unpack: keep the runs of a file, to go on from them
    time    measure the seconds of a step here, and print what the whole plan would take

A base model is kept every five minutes while it trains, and each run as it ends: started again, a command
goes on with what is missing. Set OMP_NUM_THREADS to the number of threads (default: 1).
"""

from __future__ import annotations

import argparse
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.study.larger.machine import DEVICES, DTYPES, Machine
from benchmarks.study.larger.plan import COUNTED_BASES, PLAN, SIZES, TUNING_BASE
from benchmarks.study.larger.runs import LargerStudy
from benchmarks.study.larger.tables import RESULT_TABLES, table_named
from benchmarks.study.larger.timing import Bench, report
from benchmarks.study.larger.world import base_of
from benchmarks.study.planned.results import pack, unpack
from benchmarks.study.runs import StudyError

BASES = (TUNING_BASE, *COUNTED_BASES)


def base(options: Namespace) -> None:
    """Train the bases that are missing."""
    study = _study(options)
    for number in options.bases or BASES:
        told = base_of(study.base(options.size, number))
        recall = ", ".join(
            f"{name} {told[f'{name}/recall']:.3f}" for name in ("forget", "retain", "retain_unseen")
        )
        print(f"base {number}: {told['fingerprint']}, recall {recall}")


def run(options: Namespace) -> None:
    """Make the runs that are missing."""
    study, bases = _study(options), options.bases or COUNTED_BASES
    if wrong := set(bases) - set(COUNTED_BASES):
        raise StudyError(f"base {min(wrong)} counts in no answer; --bases takes {_words(COUNTED_BASES)}")
    study.left = study.missing(options.size, bases)
    print(f"{options.size}: {study.left} runs to make", flush=True)
    study.tune(options.size)
    study.count(options.size, bases)


def table(options: Namespace) -> None:
    """Print the tables."""
    runs = LargerStudy(_there(options.out)).every()
    for name in RESULT_TABLES:
        print(f"{name}:\n{table_named(name, runs)}\n")


def packed(options: Namespace) -> None:
    """All runs into one file."""
    print(f"{pack(_there(options.out), options.file, PLAN)} runs in {options.file}")


def unpacked(options: Namespace) -> None:
    """The runs of a file into a folder."""
    print(f"{unpack(options.file, options.out)} new runs in {options.out}")


def timed(options: Namespace) -> None:
    """What the plan would take here."""
    bench = Bench(SIZES[options.size], options.tofu, _machine(options))
    print(report(bench.counts(), bench.seconds(options.steps)))


def _study(options: Namespace) -> LargerStudy:
    return LargerStudy(options.out, options.tofu, machine=_machine(options))


def _machine(options: Namespace) -> Machine:
    machine = Machine(options.device, options.dtype)
    machine.check()
    return machine


def _there(folder: Path) -> Path:
    if not folder.is_dir():
        raise StudyError(f"{folder} is no folder")
    return folder


def _words(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, got {text}")
    return int(text)


COMMANDS: dict[str, tuple[Callable[[Namespace], None], tuple[str, ...]]] = {
    "base": (base, ("out", "machine", "bases")),
    "run": (run, ("out", "machine", "bases")),
    "table": (table, ("out",)),
    "pack": (packed, ("out", "file")),
    "unpack": (unpacked, ("out", "file")),
    "time": (timed, ("machine", "steps")),
}


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks.study.larger", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (make, takes) in COMMANDS.items():
        of = commands.add_parser(name, help=make.__doc__)
        if "file" in takes:
            of.add_argument("file", type=Path, metavar="FILE", help="a parquet file of runs")
        if "out" in takes:
            of.add_argument("--out", type=Path, required=True, metavar="DIR", help="bases and runs")
        if "bases" in takes:
            of.add_argument(
                "--bases", type=int, nargs="+", choices=BASES, metavar="BASE", help="of the plan's only these"
            )
        if "machine" in takes:
            of.add_argument(
                "--tofu", type=Path, required=name == "time", metavar="FOLDER", help="TOFU's files"
            )
            of.add_argument("--size", choices=SIZES, default="10m")
            of.add_argument("--device", choices=DEVICES, default="cpu")
            of.add_argument("--dtype", choices=DTYPES, default="float32", help="of forward passes")
        if "steps" in takes:
            of.add_argument("--steps", type=_count, default=3, help="that each mean is over (default: 3)")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """The commands."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        COMMANDS[options.command][0](options)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
