"""Show results and training records as one page: `python -m recipe.rerule.report --help`.

Writes report.html (self-contained), report.md and, in a folder report/ beside them, each figure as PNG and
each table as CSV.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from recipe.rerule import io, process
from recipe.rerule.evaluation.table import format_table
from recipe.rerule.io import check_apart
from recipe.rerule.process import ArgumentParser, Progress
from recipe.rerule.reporting.attacks.results import AttackResults, read_attacks
from recipe.rerule.reporting.attacks.section import paragraphs
from recipe.rerule.reporting.build import build_sections, commands_of, sources_of, warnings_of
from recipe.rerule.reporting.document import CAUTION, CAUTION_ATTACKED, Report
from recipe.rerule.reporting.evaluations import Benchmark, read_benchmarks
from recipe.rerule.reporting.figures.style import MAX_LINES
from recipe.rerule.reporting.means import mean_over_targets
from recipe.rerule.reporting.naturalness import read_naturalness
from recipe.rerule.reporting.output import check_free, page_path, write_report
from recipe.rerule.runs.history import Run, read_run

_TITLE = "Unlearning report"
_WIDTH = 100
_DESCRIPTION = """\
Show results and training records as one page. Writes report.html (which needs no other file), report.md and,
in a folder report/ next to them, each figure as PNG and each table as CSV."""
_EXAMPLES = """\
examples:
  python -m recipe.rerule.report --results outputs/evaluation --out outputs/page
      tables, intervals, paired tests and single answers of one evaluation, as outputs/page/report.html
  python -m recipe.rerule.report --results outputs/evaluation --run rule=outputs/rule \\
      --run rerule=outputs/rerule --data outputs/world --base base --out outputs/compared.html
      with the training of two runs, and tests against the model "base"
  python -m recipe.rerule.report --results outputs/king --results outputs/confucius --out outputs/targets
      two targets of one benchmark: every number is the mean over them
  python -m recipe.rerule.report --results outputs/evaluation --attacks outputs/attacks --out outputs/page
      with what attacks get out of the models

docs/report.md says what each part shows.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 where the input is wrong or a file cannot be read or written."""
    with process.stoppable():
        return _run(sys.argv[1:] if arguments is None else list(arguments))


def _run(given: Sequence[str]) -> int:
    parser = _parser()
    options = parser.parse_args(given)
    if not (options.results or options.attacks):
        parser.error("give --results FOLDER, or --attacks FOLDER, or both")
    page = page_path(options.out)
    try:
        _check_apart(options, page)
        check_free(page, options.overwrite)
        with Progress("report") as progress:
            progress.doing("reading results and records")
            benchmarks = read_benchmarks(options.results, options.title)
            naturalness = read_naturalness(options.naturalness, benchmarks)
            attacked = read_attacks(options.attacks, options.title)
            runs = read_runs(options.run)
            progress.doing("making tables and figures")
            report = Report(
                options.title or _TITLE,
                build_sections(benchmarks, naturalness, attacked, runs, options.base, options.data),
                sources_of(benchmarks, naturalness, attacked, runs, options.data),
                commands_of(benchmarks, naturalness, attacked, given),
                CAUTION_ATTACKED if attacked else CAUTION,
            )
            progress.doing("writing the page")
            write_report(report, page, options.overwrite)
    except (ValueError, OSError) as error:
        return io.fail(error, 2)
    print("\n\n".join([*map(_terminal_table, benchmarks), *map(_terminal_attacks, attacked)]))
    for line in warnings_of(benchmarks, options.base):
        io.warn(line)
    print(f"report: {page}")
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m recipe.rerule.report", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument(
        "--results",
        action="append",
        type=Path,
        default=[],
        metavar="FOLDER",
        help="folder written by `recipe.rerule.evaluate model`, or its results.json; repeat the option for "
        "more models, targets or benchmarks",
    )
    parser.add_argument(
        "--attacks",
        action="append",
        type=Path,
        default=[],
        metavar="FOLDER",
        help="folder written by `recipe.rerule.evaluate attack`; repeat the option for more",
    )
    parser.add_argument(
        "--run",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="a stage-2 run whose training records the page shows; repeat the option for more runs",
    )
    parser.add_argument(
        "--naturalness",
        action="append",
        type=Path,
        default=[],
        metavar="FOLDER",
        help="folder written by `recipe.rerule.evaluate judge` for one of the --results folders; repeat the "
        "option for more",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="folder with the train.parquet of the runs, to count the tokens that they used",
    )
    parser.add_argument(
        "--base", metavar="NAME", help="model that the paired tests compare with (default: the first one)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="PATH",
        help="folder to write report.html to, or the page itself (NAME.html)",
    )
    parser.add_argument(
        "--title",
        metavar="TEXT",
        help="heading of the page, and of the results and attacks on data of your own "
        f"(default: {_TITLE}; Your data)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier report at --out")
    return parser


def _check_apart(options: argparse.Namespace, page: Path) -> None:
    """Refuse a page, Markdown or folder of files that is not apart from what is read. Raises ValueError."""
    inputs = [("--results", path) for path in options.results]
    inputs += [("--naturalness", path) for path in options.naturalness]
    inputs += [("--attacks", path) for path in options.attacks]
    inputs += [] if options.data is None else [("--data", options.data / "train.parquet")]
    runs = [("--run", Path(spec.partition("=")[2])) for spec in options.run if spec.partition("=")[2]]
    for path in (page, page.with_suffix(".md"), page.with_suffix("")):
        check_apart(path, *inputs, runs=runs)


def _terminal_table(benchmark: Benchmark) -> str:
    mean = mean_over_targets(benchmark.targets)
    table = format_table(mean.results, mean.anchors, mean.convention, benchmark.name)
    return f"{benchmark.title}\n{table}"


def _terminal_attacks(results: AttackResults) -> str:
    lines = [f"Attacks: {results.title}", *paragraphs(results)]
    return "\n".join(textwrap.fill(line, _WIDTH) for line in lines)


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
        same = [other for other, run in runs.items() if run.folder.resolve() == Path(folder).resolve()]
        if same:
            io.warn(f"the runs {same[0]} and {name} are one folder, {folder}: they are shown as two runs")
        runs[name] = read_run(name, Path(folder))
    return list(runs.values())


if __name__ == "__main__":
    sys.exit(main())
