"""A study's runs in one parquet file: python -m benchmarks.study.results pack DIR FILE (or unpack FILE DIR).

Packed, the runs of every world in DIR are one small file, which can be committed. Unpacked into a folder,
`python -m benchmarks.study --out DIR` goes on from them, on whatever machine, with seeds not yet begun: a
seed's arms are compared with each other, and so have to start from the same trained stage-1 model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from benchmarks.study.run_table import MEASURED, pack_or_unpack, pack_parser, read_rows, write_rows
from benchmarks.study.runs import StudyError, StudyRun, read_run, run_file, write_run

SCHEMA = pa.schema(
    {
        "world": pa.string(),
        "arm": pa.string(),
        "seed": pa.int64(),
        "commit": pa.string(),
        **MEASURED,
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
    write_rows(path, SCHEMA, ordered)


def read_results(path: Path) -> list[StudyRun]:
    """The runs of a file.

    Raises:
        StudyError: it is missing, no parquet, or has other columns.
    """
    return [StudyRun(**row) for row in read_rows(path, SCHEMA, "a study")]


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
    pack_or_unpack(pack_parser("benchmarks.study.results", __doc__).parse_args(), pack, unpack)


if __name__ == "__main__":
    main()
