"""All runs in one file: python -m benchmarks.study.planned.results pack DIR FILE (or unpack FILE DIR)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from benchmarks.study.planned.plan import PLAN
from benchmarks.study.planned.runs import PlannedRun, kept_runs, run_file, write_run
from benchmarks.study.run_table import MEASURED, pack_or_unpack, pack_parser, read_rows, write_rows
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
        **MEASURED,
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
    write_rows(path, SCHEMA, ordered)


def read_results(path: Path) -> list[PlannedRun]:
    """The runs of a file.

    Raises:
        StudyError: it is missing, no parquet, or has other columns.
    """
    return [PlannedRun(**row) for row in read_rows(path, SCHEMA, "the plan")]


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
    pack_or_unpack(
        pack_parser("benchmarks.study.planned.results", __doc__).parse_args(arguments), pack, unpack
    )


if __name__ == "__main__":
    main()
