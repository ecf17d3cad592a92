"""Show results and training records as one page: `python -m recipe.rerule.report --help`.

Writes report.html (self-contained), report.md and, in a folder report/ beside them, each figure as PNG and
each table as CSV.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from recipe.rerule import io, process
from recipe.rerule.evaluation.table import format_table
from recipe.rerule.io import check_apart
from recipe.rerule.process import ArgumentParser, Progress
from recipe.rerule.reporting.attacks import AttackResults, attack_sections, paragraphs, read_attacks
from recipe.rerule.reporting.curves import training_figures
from recipe.rerule.reporting.document import CAUTION, CAUTION_ATTACKED, Report, Section
from recipe.rerule.reporting.evaluations import Benchmark, read_benchmarks, read_naturalness
from recipe.rerule.reporting.output import check_free, page_path, write_report
from recipe.rerule.reporting.paper import paper_figures
from recipe.rerule.reporting.probes import browser_of
from recipe.rerule.reporting.results import results_section, warnings_of
from recipe.rerule.reporting.style import MAX_LINES
from recipe.rerule.reporting.training import joint, run_tables, theory_table
from recipe.rerule.runs.history import Run, read_run

_TITLE = "Unlearning report"
_WIDTH = 100
_JOINT = "Several runs have one name, so their figures are in a report of each of them, and not here."
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

_FOLDERS = {
    "--results": "folder written by `recipe.rerule.evaluate model`, or its results.json; repeat the option "
    "for more models, targets or benchmarks",
    "--attacks": "folder written by `recipe.rerule.evaluate attack`; repeat the option for more",
    "--run": "a stage-2 run whose training records the page shows; repeat the option for more runs. Runs "
    "with one NAME, such as those of RWKU's targets, have one row together, and no figures",
    "--naturalness": "folder written by `recipe.rerule.evaluate judge` for one of the --results folders; "
    "repeat the option for more",
}
"""Options whose folders are read, and their help."""


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
            judged = read_naturalness(options.naturalness, benchmarks)
            attacked = read_attacks(options.attacks, options.title)
            runs = read_runs(options.run)
            progress.doing("making tables and figures")
            evaluations = [target for one in [*benchmarks, *judged] for target in one.targets]
            metas = [*(one.meta for one in evaluations), *(one.meta for one in attacked)]
            commands = dict.fromkeys(str(meta["command"]) for meta in metas if meta.get("command"))
            report = Report(
                options.title or _TITLE,
                build_sections(benchmarks, judged, attacked, runs, options.base, options.data),
                [*commands, shlex.join(["python", "-m", "recipe.rerule.report", *given])],
                CAUTION_ATTACKED if attacked else CAUTION,
            )
            progress.doing("writing the page")
            write_report(report, page, options.overwrite)
    except (ValueError, OSError) as error:
        return io.fail(error, 2)
    told = []
    for one in benchmarks:
        mean = one.mean
        table = format_table(mean.results, mean.anchors, mean.convention, one.name)
        told.append(f"{one.title}\n{table}")
    for results in attacked:
        lines = [f"Attacks: {results.title}", *paragraphs(results)]
        told.append("\n".join(textwrap.fill(line, _WIDTH) for line in lines))
    print("\n\n".join(told))
    for line in warnings_of(benchmarks, options.base):
        io.warn(line)
    print(f"report: {page}")
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m recipe.rerule.report", description=_DESCRIPTION, epilog=_EXAMPLES)
    for option, what in _FOLDERS.items():
        kind, metavar = (str, "NAME=FOLDER") if option == "--run" else (Path, "FOLDER")
        parser.add_argument(option, action="append", type=kind, default=[], metavar=metavar, help=what)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="folder with the train.parquet of the runs, or with such folders of their targets, to count the "
        "tokens that they used",
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
    kinds = ("results", "naturalness", "attacks")
    inputs = [(f"--{kind}", path) for kind in kinds for path in getattr(options, kind)]
    inputs += [] if options.data is None else [("--data", options.data / "train.parquet")]
    runs = [("--run", Path(spec.partition("=")[2])) for spec in options.run if spec.partition("=")[2]]
    for path in (page, page.with_suffix(".md"), page.with_suffix("")):
        check_apart(path, *inputs, runs=runs)


def build_sections(
    benchmarks: Sequence[Benchmark],
    judged: Sequence[Benchmark],
    attacked: Sequence[AttackResults],
    runs: Sequence[Run],
    base: str | None,
    data: Path | None,
) -> list[Section]:
    """In order: each benchmark's results, naturalness, attacks, training, replay's tables, probes.

    Args:
        judged: scores of a judge on the responses of `benchmarks`.
        base: model that paired tests are shown against; the first one by default.
        data: folder of the training parquet, for the tokens used; None leaves that table out.

    Raises ValueError: no model `base`, or records that do not fit together.
    """
    names = [run.name for run in runs]
    # A figure has one line for each name.
    drawn = [] if len(set(names)) < len(names) else runs
    sections = [results_section(one, drawn, base) for one in [*benchmarks, *judged]]
    sections += attack_sections(attacked)
    if runs:
        # Tables first: what is wrong with the input shows before anything is drawn.
        tables = [joint(table) for table in (*run_tables(benchmarks, runs, data), theory_table(runs))]
        figures = [*training_figures(runs), *paper_figures(benchmarks, runs)] if drawn else [_JOINT]
        sections.append(Section("Training", figures))
        sections.append(Section("Replay, by setting and by cost", tables))
    for benchmark in benchmarks:
        if browser := browser_of(benchmark.targets, f"probes-{benchmark.name}"):
            sections.append(Section(f"Single probes of {benchmark.title}", [browser]))
    return sections


def read_runs(specs: Sequence[str]) -> list[Run]:
    """Runs from "NAME=FOLDER" strings, in order.

    Raises ValueError: a spec without name or folder, one given twice, more names than a figure can tell
    apart, or a folder without records.
    """
    names = dict.fromkeys(spec.partition("=")[0] for spec in specs)
    if len(names) > MAX_LINES:
        raise ValueError(f"{len(names)} runs given; a figure can tell {MAX_LINES} apart")
    runs: list[Run] = []
    for spec in specs:
        name, _, folder = spec.partition("=")
        if not (name.strip() and folder):
            raise ValueError(f"--run {spec!r} is not NAME=FOLDER")
        same = [run.name for run in runs if run.folder.resolve() == Path(folder).resolve()]
        if name in same:
            raise ValueError(f"--run {name} is given twice with the folder {folder}; it counts once")
        if same:
            io.warn(f"the runs {same[0]} and {name} are one folder, {folder}: they are shown as two runs")
        runs.append(read_run(name, Path(folder)))
    return runs


if __name__ == "__main__":
    sys.exit(main())
