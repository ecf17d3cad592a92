"""All runs in one file: python -m benchmarks.study.planned.results pack DIR FILE (or unpack FILE DIR)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.study.planned.plan import PLAN
from benchmarks.study.planned.runs import PlannedRun, kept_runs, run_file, write_run
from benchmarks.study.runs import StudyError

SCHEMA = pa.schema(
    {
        "world": pa.string(),
        "base": pa.int64(),
        "arm": pa.string(),
        "rate": pa.float64(),
        "seed": pa.int64(),
        "plan": pa.string(),
        "commit": pa.string(),
        "content": pa.string(),
        "model": pa.string(),
        "settings": pa.string(),
        "final": pa.map_(pa.string(), pa.float64()),
        "curves": pa.map_(pa.string(), pa.list_(pa.float32())),
    }
)
"""One row a run; settings are JSON."""


def write_results(path: Path, runs: Sequence[PlannedRun]) -> None:
    """Write runs in order. Curves are rounded to float32.

    Raises:
        StudyError: something else than results of the plan is at `path`.
    """
    if path.exists():
        read_results(path)
    ordered = sorted(runs, key=lambda run: (run.world, run.base, run.model, run.arm, run.rate, run.seed))
    rows = [{**asdict(run), "settings": json.dumps(run.settings, sort_keys=True)} for run in ordered]
    for row in rows:
        row |= {name: list(row[name].items()) for name in ("final", "curves")}
    part = path.with_name(path.name + ".part")
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), part, compression="zstd")
    part.replace(path)


def read_results(path: Path) -> list[PlannedRun]:
    """The runs of a file.

    Raises:
        StudyError: it is missing, no parquet, or has other columns.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise StudyError(f"{path} is no result file of the plan: {error}") from error
    if not table.schema.equals(SCHEMA):
        raise StudyError(f"{path} has the columns {table.schema.names}, not those of the plan's results")
    rows = table.to_pylist()
    for row in rows:
        row |= {name: dict(row[name]) for name in ("final", "curves")}
    return [PlannedRun(**{**row, "settings": json.loads(row["settings"])}) for row in rows]


def pack(folder: Path, path: Path, plan: Path = PLAN) -> int:
    """Write all runs of a folder, made under this plan, to one file; how many.

    Raises:
        StudyError: there are none, or the file has runs that the folder lacks, which would be lost.
    """
    runs = list(kept_runs(folder, plan))
    if not runs:
        raise StudyError(f"{folder} keeps no runs of the plan")
    lost = [run for run in read_results(path) if not run_file(run, folder).is_file()] if path.exists() else []
    if lost:
        raise StudyError(f"{path} has {len(lost)} runs that {folder} lacks; unpack it there first")
    write_results(path, runs)
    return len(runs)


def unpack(path: Path, folder: Path) -> int:
    """Keep the runs of a file in a folder, where they are not yet; how many were new.

    Raises:
        StudyError: the file holds no results.
    """
    new = [run for run in read_results(path) if not run_file(run, folder).is_file()]
    for run in new:
        write_run(run, folder)
    return len(new)


def main(arguments: Sequence[str] | None = None) -> None:
    """The two commands."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study.planned.results", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for command, first, second in (("pack", "folder", "file"), ("unpack", "file", "folder")):
        of = commands.add_parser(command)
        of.add_argument(first, type=Path)
        of.add_argument(second, type=Path)
    options = parser.parse_args(arguments)
    try:
        if options.command == "pack":
            print(f"{pack(options.folder, options.file)} runs in {options.file}")
        else:
            print(f"{unpack(options.file, options.folder)} new runs in {options.folder}")
    except StudyError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
