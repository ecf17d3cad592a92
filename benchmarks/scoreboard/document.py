"""The scoreboard's tables in a document: python -m benchmarks.scoreboard.document RESULTS DOCUMENT [--check]

RESULTS is the folder that `python -m benchmarks.scoreboard` writes. Each text stands between two comments,
the first of which names it: status, scores, fronts, differences or agreement. With --check the command only
says whether the texts are already so.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.scoreboard.agreement import agreement_table, read_rerun
from benchmarks.scoreboard.plan import METHODS, REFERENCES, SEEDS
from benchmarks.scoreboard.results import Results, read
from benchmarks.scoreboard.tables import difference_table, front_table, score_table, worlds_of
from benchmarks.study.tables import code
from recipe.rerule.process.arguments import ArgumentParser
from recipe.rerule.reporting import markdown
from recipe.rerule.reporting.document import Table

RERUN = Path("benchmarks/leaderboard/results.parquet"), Path("benchmarks/survival/results.parquet")
"""Other worlds, with which the order of the methods is compared."""
NOT_YET = "No results are committed yet."
_SPAN = re.compile(
    r"(<!-- scoreboard: (?P<name>[^\n]+?) -->\n).*?(<!-- end of scoreboard: (?P=name) -->)", re.DOTALL
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the texts, or check them. 1 where a check fails, 2 where something is wrong."""
    options = _parser().parse_args(arguments)
    try:
        text = options.document.read_text(encoding="utf-8")
        written = with_texts(text, read(options.results))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if written != text and options.check:
        print(
            f"error: {options.document} is not as in {options.results}; run this without --check",
            file=sys.stderr,
        )
        return 1
    if written != text:
        options.document.write_text(written, encoding="utf-8")
        print(f"{options.document}: written")
    return 0


def with_texts(text: str, found: Results | None) -> str:
    """A document with its texts made anew; None where there are no results.

    Raises:
        ValueError: a comment names no text.
    """
    return _SPAN.sub(lambda span: f"{span[1]}{_named(span['name'], found)}\n{span[3]}", text)


def _named(name: str, found: Results | None) -> str:
    if name not in TEXTS:
        raise ValueError(f"no text is named {name!r}; there are {', '.join(TEXTS)}")
    return NOT_YET if found is None else TEXTS[name](found)


def _status(found: Results) -> str:
    seeds = worlds_of(found)
    rows = len({*METHODS, *REFERENCES.values()} & set(found.methods))
    planned = len(METHODS) + len(REFERENCES)
    return (
        f"The results rest on {len(seeds)} of the plan's {SEEDS} worlds (seeds {', '.join(map(str, seeds))}) "
        f"and have {rows} of its {planned} rows."
    )


def _agreement(found: Results) -> str:
    return markdown.markdown_table(agreement_table(found, read_rerun(*RERUN)), markdown.plain)


def _table(made: Callable[[Results], Table]) -> Callable[[Results], str]:
    def text(found: Results) -> str:
        table = made(found)
        rows = tuple(replace(row, name=code(row.name)) for row in table.rows)
        return markdown.markdown_table(replace(table, rows=rows), markdown.plain)

    return text


TEXTS: dict[str, Callable[[Results], str]] = {
    "status": _status,
    "scores": _table(score_table),
    "fronts": _table(front_table),
    "differences": _table(difference_table),
    "agreement": _agreement,
}


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks.scoreboard.document", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("results", type=Path, metavar="RESULTS")
    parser.add_argument("document", type=Path, metavar="DOCUMENT")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a text is not as in RESULTS"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
