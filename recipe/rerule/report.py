"""Show results and training records as one page: `python -m recipe.rerule.report --help`.

Writes report.html (self-contained), report.md and, in a folder report/ beside them, each figure as PNG and
each table as CSV.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from data_prep.apart import check_apart
from recipe.rerule.evaluation.table import format_table
from recipe.rerule.reporting.build import build_sections, commands_of, sources_of, title_of
from recipe.rerule.reporting.document import Report
from recipe.rerule.reporting.evaluations import Benchmark, read_benchmarks
from recipe.rerule.reporting.figures.style import MAX_LINES
from recipe.rerule.reporting.means import mean_over_targets
from recipe.rerule.reporting.naturalness import read_naturalness
from recipe.rerule.reporting.output import check_free, page_path, write_report
from recipe.rerule.reporting.records import Run, read_run


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 where the input is wrong or a file cannot be read or written."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(given)
    page = page_path(options.out)
    try:
        _check_apart(options, page)
        check_free(page, options.overwrite)
        benchmarks = read_benchmarks(options.results)
        naturalness = read_naturalness(options.naturalness, benchmarks)
        runs = read_runs(options.run)
        report = Report(
            options.title,
            build_sections(benchmarks, naturalness, runs, options.base, options.data),
            sources_of(benchmarks, naturalness, runs, options.data),
            commands_of(benchmarks, naturalness, given),
        )
        write_report(report, page, options.overwrite)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n\n".join(map(_terminal_table, benchmarks)))
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
        "--title", default="Unlearning report", help="heading of the page (default: %(default)s)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier report")
    return parser


def _check_apart(options: argparse.Namespace, page: Path) -> None:
    """Refuse a page, Markdown or folder of files that is not apart from what is read. Raises ValueError."""
    inputs = [("--results", path) for path in options.results]
    inputs += [("--naturalness", path) for path in options.naturalness]
    inputs += [] if options.data is None else [("--data", options.data / "train.parquet")]
    runs = [("--run", Path(spec.partition("=")[2])) for spec in options.run if spec.partition("=")[2]]
    for path in (page, page.with_suffix(".md"), page.with_suffix("")):
        check_apart(path, *inputs, runs=runs)


def _terminal_table(benchmark: Benchmark) -> str:
    mean = mean_over_targets(benchmark.targets)
    table = format_table(mean.results, mean.anchors, mean.convention, benchmark.name)
    return f"{title_of(benchmark.name)}\n{table}"


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


if __name__ == "__main__":
    sys.exit(main())
