"""Tables of plan and results: python -m benchmarks.study.planned.document RESULTS DOCUMENT ... [--check]

Each stands between two comments, the first of which names it (one of PLAN_TABLES or RESULT_TABLES). RESULTS
is made by `benchmarks.study.planned.results`. With --check the command only says whether they are already so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.study.differences import name_of
from benchmarks.study.document import with_tables
from benchmarks.study.planned.plan import (
    CONTROLS,
    COUNTED,
    COUNTED_BASES,
    COUNTED_SEEDS,
    EXTRAS,
    IDEAS,
    SECONDARY,
    TUNING_BASES,
    TUNING_SEEDS,
    WORLDS,
    PlannedArm,
)
from benchmarks.study.planned.results import read_results
from benchmarks.study.planned.runs import PlannedRun
from benchmarks.study.planned.tables import RESULT_TABLES
from benchmarks.study.tables import bare, code, in_markdown, made_of
from recipe.rerule.reporting.document import Cell, Heading, Row, Table

NOT_YET = "These runs are not all done yet."
UNTIL = {
    "steps": "the world's steps",
    "compute": "equal compute",
    "generated": "0.6 of RULE's generated tokens",
}


def models() -> Table:
    """Bases and run seeds."""
    rows = [
        Row("to choose", (Cell(_list(WORLDS)), Cell(_list(TUNING_BASES)), Cell(_list(TUNING_SEEDS)))),
        Row("that count", (Cell(_list(WORLDS)), Cell(_list(COUNTED_BASES)), Cell(_list(COUNTED_SEEDS)))),
    ]
    return bare([Heading(name) for name in ("worlds", "bases", "run seeds of each")], rows, lead="models")


def arms(table: Mapping[str, PlannedArm]) -> Table:
    """What each arm is, and what ends its runs."""
    rows = [Row(code(name), (Cell(arm.meaning), Cell(UNTIL[arm.until]))) for name, arm in table.items()]
    return bare([Heading("what it is"), Heading("runs until")], rows, lead="arm")


def secondary() -> Table:
    """The pairs that are corrected together."""
    return bare([Heading("family")], [Row(name_of(pair), (Cell("Holm"),)) for pair in SECONDARY], lead="pair")


def _list(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


PLAN_TABLES: dict[str, Callable[[], Table]] = {
    "models": models,
    "counted": lambda: arms(COUNTED),
    "extras": lambda: arms(EXTRAS),
    "ideas": lambda: arms(IDEAS),
    "controls": lambda: arms(CONTROLS),
    "secondary": secondary,
}


def table_named(name: str, runs: Sequence[PlannedRun]) -> str:
    """One table, in Markdown. Raises ValueError where there is none of that name."""
    return in_markdown(name, PLAN_TABLES | made_of(RESULT_TABLES, runs), NOT_YET)


def written(text: str, runs: Sequence[PlannedRun]) -> str:
    """A document with each table made anew. Raises ValueError as `table_named`."""
    return with_tables(text, [], lambda name, _: table_named(name, runs))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables, or check them."""
    command("python -m benchmarks.study.planned.document", __doc__, written, arguments)


def command(
    program: str,
    description: str | None,
    make: Callable[[str, Any], str],
    arguments: Sequence[str] | None = None,
    read: Callable[[Path], Any] = read_results,
) -> None:
    """The command RESULTS DOCUMENT ... [--check] of documents whose tables `make` makes anew.

    read: gives what `make` takes, from the file RESULTS.
    """
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("results", type=Path)
    parser.add_argument("documents", type=Path, nargs="+")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a table is not so")
    options = parser.parse_args(arguments)
    try:
        found = read(options.results)
        texts = {path: make(path.read_text(encoding="utf-8"), found) for path in options.documents}
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    stale = [path for path, text in texts.items() if path.read_text(encoding="utf-8") != text]
    if stale and options.check:
        sys.exit(f"error: {_list(stale)}: not as in {options.results}; run this without --check")
    for path in stale:
        path.write_text(texts[path], encoding="utf-8")
        print(f"{path}: tables written")


if __name__ == "__main__":
    main()
