"""Runs as the rows of one parquet file, and the words of the commands that pack and unpack them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.study.runs import StudyError

MEASURED = {
    "settings": pa.string(),
    "final": pa.map_(pa.string(), pa.float64()),
    "curves": pa.map_(pa.string(), pa.list_(pa.float32())),
}
"""Columns that each run has; settings are JSON."""


def write_rows(path: Path, schema: pa.Schema, runs: Iterable[Any]) -> None:
    """Write runs, which are dataclasses, in their order. Curves are rounded to float32."""
    rows = [{**asdict(run), "settings": json.dumps(run.settings, sort_keys=True)} for run in runs]
    for row in rows:
        row |= {name: list(row[name].items()) for name in ("final", "curves")}
    part = path.with_name(path.name + ".part")
    pq.write_table(pa.Table.from_pylist(rows, schema), part, compression="zstd")
    part.replace(path)


def read_rows(path: Path, schema: pa.Schema, of: str) -> list[dict[str, Any]]:
    """The values of each run, by attribute. of: whose results they are, for errors.

    Raises:
        StudyError: the file is missing, no parquet, or has other columns.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise StudyError(f"{path} is no result file of {of}: {error}") from error
    if not table.schema.equals(schema):
        raise StudyError(f"{path} has the columns {table.schema.names}, not those of {of}'s results")
    return [
        {
            **row,
            "settings": json.loads(row["settings"]),
            "final": dict(row["final"]),
            "curves": dict(row["curves"]),
        }
        for row in table.to_pylist()
    ]


def pack_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """Takes `pack FOLDER FILE` or `unpack FILE FOLDER`."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    for name, first, second in (("pack", "folder", "file"), ("unpack", "file", "folder")):
        of = commands.add_parser(name)
        of.add_argument(first, type=Path)
        of.add_argument(second, type=Path)
    return parser


def pack_or_unpack(
    options: argparse.Namespace, pack: Callable[[Path, Path], int], unpack: Callable[[Path, Path], int]
) -> None:
    """What `pack_parser` was given."""
    try:
        if options.command == "pack":
            print(f"{pack(options.folder, options.file)} runs in {options.file}")
        else:
            print(f"{unpack(options.file, options.folder)} new runs in {options.folder}")
    except StudyError as error:
        sys.exit(f"error: {error}")
