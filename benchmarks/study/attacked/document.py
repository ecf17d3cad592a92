"""Tables of plan and results: python -m benchmarks.study.attacked.document RESULTS DOCUMENT ... [--check]

Each stands between two comments, the first of which names it (one of PLAN_TABLES or RESULT_TABLES of
tables.py). RESULTS is made by `python -m benchmarks.study.attacked`. With --check the command only says
whether they are already so.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.study.attacked.results import Attacked, read
from benchmarks.study.attacked.tables import table_named
from benchmarks.study.document import with_tables
from benchmarks.study.planned.document import command

NOTHING = Attacked({}, "", {})


def written(text: str, found: Attacked = NOTHING) -> str:
    """A document with each table made anew. Raises ValueError as `table_named`."""
    return with_tables(text, [], lambda name, _: table_named(name, found))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables, or check them."""
    command("python -m benchmarks.study.attacked.document", __doc__, written, arguments, read)


if __name__ == "__main__":
    main()
