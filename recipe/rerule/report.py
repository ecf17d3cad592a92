"""Show results and training records as one page: `python -m recipe.rerule.report --help`.

Writes report.html (self-contained), report.md and, in a folder report/ beside them, each figure as PNG and
each table as CSV.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from recipe.rerule import errors
from recipe.rerule.evaluation.table import format_table
from recipe.rerule.reporting.build import build_sections, commands_of, sources_of, warnings_of
from recipe.rerule.reporting.csv_files import csv_text
from recipe.rerule.reporting.document import Report
from recipe.rerule.reporting.evaluations import Benchmark, read_benchmarks
from recipe.rerule.reporting.figures.style import MAX_LINES
from recipe.rerule.reporting.markdown import markdown_page
from recipe.rerule.reporting.means import mean_over_targets
from recipe.rerule.reporting.naturalness import read_naturalness
from recipe.rerule.reporting.page import html_page
from recipe.rerule.reporting.records import Run, read_run

_TITLE = "Unlearning report"
_OURS = {".png", ".csv"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 where the input is wrong or a file cannot be read or written."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(given)
    page = page_path(options.out)
    try:
        check_free(page, options.overwrite)
        benchmarks = read_benchmarks(options.results, options.title)
        naturalness = read_naturalness(options.naturalness, benchmarks)
        runs = read_runs(options.run)
        report = Report(
            options.title or _TITLE,
            build_sections(benchmarks, naturalness, runs, options.base, options.data),
            sources_of(benchmarks, naturalness, runs, options.data),
            commands_of(benchmarks, naturalness, given),
        )
        write_report(report, page)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n\n".join(map(_terminal_table, benchmarks)))
    for line in warnings_of(benchmarks, options.base):
        errors.warn(line)
    print(f"report: {page}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recipe.rerule.report", description=__doc__)
    parser.add_argument(
        "--results",
        action="append",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder written by recipe.rerule.evaluate, or its results.json; repeat for more models, targets "
        "or benchmarks",
    )
    parser.add_argument(
        "--run",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="a stage-2 run whose training records to show; repeat for more",
    )
    parser.add_argument(
        "--naturalness",
        action="append",
        type=Path,
        default=[],
        metavar="FOLDER",
        help="scores of `recipe.rerule.evaluate judge` on responses of a --results folder; repeat for more",
    )
    parser.add_argument(
        "--data", type=Path, help="folder of train.parquet, to count the tokens that runs used"
    )
    parser.add_argument("--base", help="model that paired tests are shown against (default: the first)")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder to write report.html to, or the page itself"
    )
    parser.add_argument(
        "--title",
        help=f"heading of the page, and of the results on data of your own (default: {_TITLE}; Your data)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier report")
    return parser


def _terminal_table(benchmark: Benchmark) -> str:
    mean = mean_over_targets(benchmark.targets)
    table = format_table(mean.results, mean.anchors, mean.convention, benchmark.name)
    return f"{benchmark.title}\n{table}"


def read_runs(specs: Sequence[str]) -> list[Run]:
    """Runs from "NAME=FOLDER" strings, in order.

    Raises:
        ValueError: a spec without name or folder, a name given twice, more runs than a figure can tell apart,
            or a folder without records.
    """
    if len(specs) > MAX_LINES:
        raise ValueError(f"{len(specs)} runs given; a figure can tell {MAX_LINES} apart")
    runs: dict[str, Run] = {}
    for spec in specs:
        name, _, folder = spec.partition("=")
        if not (name.strip() and folder):
            raise ValueError(f"--run {spec!r} is not NAME=FOLDER")
        if name in runs:
            raise ValueError(f"--run {name} is given twice; every run needs its own name")
        runs[name] = read_run(name, Path(folder))
    return list(runs.values())


def page_path(out: Path) -> Path:
    """`out` itself where it names an HTML file, else report.html in that folder."""
    return out if out.suffix == ".html" else out / "report.html"


def check_free(page: Path, overwrite: bool) -> None:
    """Raises ValueError where a part of the report exists, unless `overwrite` is given and it can be ours."""
    folder = page.with_suffix("")
    for path in (page, page.with_suffix(".md"), folder):
        if path.exists() and not overwrite:
            raise ValueError(f"{path} exists already; give another --out, or --overwrite to replace it")
    if folder.exists() and not (folder.is_dir() and all(file.suffix in _OURS for file in folder.iterdir())):
        raise ValueError(
            f"{folder} holds more than figures and tables of a report, so it is not replaced; give another "
            "--out"
        )


def write_report(report: Report, page: Path) -> None:
    """Write the page, its Markdown and the folder of files; each appears complete, the page last."""
    folder = page.with_suffix("")
    page.parent.mkdir(parents=True, exist_ok=True)
    draft = page.with_name(f".{page.stem}.draft-{os.getpid()}")
    (draft / "files").mkdir(parents=True)
    try:
        for figure in report.figures():
            (draft / "files" / f"{figure.name}.png").write_bytes(figure.png)
        for table in report.tables():
            (draft / "files" / f"{table.name}.csv").write_text(csv_text(table), encoding="utf-8")
        (draft / "page.md").write_text(markdown_page(report, folder.name), encoding="utf-8")
        (draft / "page.html").write_text(html_page(report), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        (draft / "files").rename(folder)
        (draft / "page.md").replace(page.with_suffix(".md"))
        (draft / "page.html").replace(page)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
