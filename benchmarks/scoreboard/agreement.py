"""Do other worlds order the methods alike? python -m benchmarks.scoreboard.agreement RUNS SCORES

RUNS and SCORES are a leaderboard's runs and the scores of its attacks on worlds that the scoreboard does not
have (benchmarks/leaderboard/results.parquet, benchmarks/survival/results.parquet). Prints Spearman's rank
correlation of each number over the methods that both have, each method by its mean over worlds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from scipy.stats import spearmanr

from benchmarks.leaderboard.plan import PLAN
from benchmarks.leaderboard.table import evaluated, method_of
from benchmarks.scoreboard.plan import AXES, Axis
from benchmarks.scoreboard.results import Results, read
from benchmarks.study import results as study_results
from benchmarks.study.tables import bare
from benchmarks.survival.results import read_results
from recipe.rerule.process.arguments import ArgumentParser
from recipe.rerule.reporting import markdown
from recipe.rerule.reporting.document import DASH, Cell, Heading, Row, Table, number_cell

RESULTS = Path("benchmarks/scoreboard/results")
FEWEST = 3
"""Methods that a rank correlation needs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. 2 where something is wrong."""
    options = _parser().parse_args(arguments)
    try:
        table = agreement_table(read(options.results), read_rerun(options.runs, options.scores))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(markdown.markdown_table(table, markdown.plain))
    return 0


def read_rerun(runs: Path, scores: Path) -> Results:
    """The same numbers from the two files of a leaderboard. Raises ValueError where one is another file."""
    counted = evaluated(study_results.read_results(runs), PLAN)
    return Results({(method_of(run), run.seed): run for run in counted}, read_results(scores))


def agreement_table(found: Results, rerun: Results) -> Table:
    """A row a number: how many methods both have, and the rank correlation over them."""
    headings = (Heading("methods"), Heading("rank correlation", "", "high"))
    return bare(headings, [Row(axis.label, _cells(found, rerun, axis)) for axis in AXES], "number")


def _cells(found: Results, rerun: Results, axis: Axis) -> tuple[Cell, Cell]:
    both = [m for m in found.methods if found.values(m, axis) and rerun.values(m, axis)]
    columns = [[mean(one.values(method, axis).values()) for method in both] for one in (found, rerun)]
    # Without an order there is no correlation.
    if len(both) < FEWEST or any(len(set(column)) == 1 for column in columns):
        return number_cell(len(both), "d"), DASH
    return number_cell(len(both), "d"), number_cell(float(spearmanr(*columns).statistic), ".2f")


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks.scoreboard.agreement", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("scores", type=Path, metavar="SCORES")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="FOLDER", help="default: %(default)s"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
