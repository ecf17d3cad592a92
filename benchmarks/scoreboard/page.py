"""The scoreboard as a page: python -m benchmarks.scoreboard.page RESULTS --out DIR [--log NAME=FILE ...]

RESULTS is the folder that `python -m benchmarks.scoreboard` writes. Writes report.html, which is one file
with tables that can be sorted, report.md, and a folder of CSV files. FILE is a log of open-unlearning's
format (TOFU_EVAL.json); its model gets a row in a separate table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.scoreboard.logs import log_table
from benchmarks.scoreboard.results import Results, read
from benchmarks.scoreboard.tables import difference_table, front_table, score_table, worlds_of
from data_prep.apart import check_apart
from recipe.rerule.process.arguments import ArgumentParser
from recipe.rerule.reporting.document import CAUTION_ATTACKED, Report, Section
from recipe.rerule.reporting.output import check_free, page_path, write_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page. 2 where something is wrong."""
    options = _parser().parse_args(arguments)
    try:
        page = page_path(options.out)
        check_apart(page, ("RESULTS", options.results))
        check_free(page, options.overwrite)
        report = build(read(options.results), dict(options.log), options.results)
        write_report(report, page, options.overwrite)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"page: {page}")
    return 0


def build(found: Results, logs: Mapping[str, Path], source: Path) -> Report:
    """The report. Raises ValueError where a log cannot be read."""
    worlds = ", ".join(map(str, worlds_of(found)))
    intro = f"Worlds {worlds}. The unit is the world with its models. A click on a heading sorts a table."
    sections = [
        Section("Methods", (intro, score_table(found), front_table(found))),
        Section("Differences", (difference_table(found),)),
    ]
    if logs:
        sections.append(Section("From logs", (log_table(logs),)))
    command = f"python -m benchmarks.scoreboard --results {source}"
    return Report(
        "Unlearning methods and what survives",
        sections,
        {"results": f"{source}"},
        [command],
        CAUTION_ATTACKED,
    )


def _log(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE")
    return name, Path(path)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks.scoreboard.page", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("results", type=Path, metavar="RESULTS")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--log", type=_log, action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier page")
    return parser


if __name__ == "__main__":
    sys.exit(main())
