"""The tables of docs/leaderboard.md: python -m benchmarks.leaderboard.document RESULTS DOCUMENT [--check]

RESULTS is made by `python -m benchmarks.study.results pack`. Each table stands between two comments, the
first of which names it: leaderboard, differences, tuning or expectations. With --check the command only says
whether the tables are already so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.leaderboard.differences import difference_table
from benchmarks.leaderboard.expectations import expectation_table
from benchmarks.leaderboard.plan import PLAN, Plan
from benchmarks.leaderboard.table import leaderboard_table, tuning_table
from benchmarks.study.document import command
from benchmarks.study.tables import Runs
from recipe.rerule.reporting import markdown
from recipe.rerule.reporting.document import Table

TABLES: dict[str, Callable[[Runs, Plan], Table]] = {
    "leaderboard": leaderboard_table,
    "differences": difference_table,
    "tuning": tuning_table,
    "expectations": expectation_table,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables, or check them."""
    command("python -m benchmarks.leaderboard.document", __doc__, table_named, arguments)


def table_named(name: str, runs: Runs) -> str:
    """One of TABLES in Markdown.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in TABLES:
        raise ValueError(f"no table is named {name!r}; there are {', '.join(TABLES)}")
    return markdown.markdown_table(TABLES[name](runs, PLAN), markdown.plain)


if __name__ == "__main__":
    main()
