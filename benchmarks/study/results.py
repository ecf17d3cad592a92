"""A study's runs in one parquet file: python -m benchmarks.study.results pack DIR FILE (or unpack FILE DIR).

Packed, the runs of every world in DIR are one small file, which can be committed. Unpacked into a folder,
`python -m benchmarks.study --out DIR` goes on from them, on whatever machine, with seeds not yet begun: a
seed's arms are compared with each other, and so have to start from the same trained stage-1 model.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.study.runs import StudyError, StudyRun, read_run, run_file, write_run

SCHEMA = pa.schema(
    {
        "world": pa.string(),
        "arm": pa.string(),
        "seed": pa.int64(),
        "commit": pa.string(),
        "settings": pa.string(),
        "final": pa.map_(pa.string(), pa.float64()),
        "curves": pa.map_(pa.string(), pa.list_(pa.float32())),
        "model": pa.string(),
    }
)
"""One row a run; settings are JSON."""


def write_results(path: Path, runs: Sequence[StudyRun]) -> None:
    """Write runs by world, arm and seed. Curves are rounded to float32.

    Raises:
        StudyError: something else than results of a study is at `path`.
    """
    if path.exists():
        read_results(path)
    ordered = sorted(runs, key=lambda run: (run.world, run.arm, run.seed))
    rows = [{**asdict(run), "settings": json.dumps(run.settings, sort_keys=True)} for run in ordered]
    for row in rows:
        row |= {name: list(row[name].items()) for name in ("final", "curves")}
    part = path.with_name(path.name + ".part")
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), part, compression="zstd")
    part.replace(path)


def read_results(path: Path) -> list[StudyRun]:
    """The runs of a file.

    Raises:
        StudyError: it is missing, no parquet, or has other columns.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise StudyError(f"{path} is no result file of a study: {error}") from error
    if not table.schema.equals(SCHEMA):
        raise StudyError(f"{path} has the columns {table.schema.names}, not those of a study's results")
    return [
        StudyRun(
            **{
                **row,
                "settings": json.loads(row["settings"]),
                "final": dict(row["final"]),
                "curves": dict(row["curves"]),
            }
        )
        for row in table.to_pylist()
    ]


def pack(folder: Path, path: Path) -> int:
    """Write all runs kept under a study's folder to one file; how many.

    Raises:
        StudyError: there are none, or a file is no run.
    """
    runs = [read_run(file) for file in sorted(folder.glob("*/runs/*.json"))]
    if not runs:
        raise StudyError(f"{folder} keeps no runs of a study")
    write_results(path, runs)
    return len(runs)


def unpack(path: Path, folder: Path) -> int:
    """Keep the runs of a file under a study's folder, where they are not yet; how many were new.

    Raises:
        StudyError: the file holds no results.
    """
    new = [run for run in read_results(path) if not run_file(folder, run.world, run.arm, run.seed).is_file()]
    for run in new:
        write_run(run, folder)
    return len(new)


def main() -> None:
    """The two commands."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study.results", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for command, first, second in (("pack", "folder", "file"), ("unpack", "file", "folder")):
        of = commands.add_parser(command)
        of.add_argument(first, type=Path)
        of.add_argument(second, type=Path)
    options = parser.parse_args()
    try:
        if options.command == "pack":
            print(f"{pack(options.folder, options.file)} runs in {options.file}")
        else:
            print(f"{unpack(options.file, options.folder)} new runs in {options.folder}")
    except StudyError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
