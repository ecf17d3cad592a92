"""What documents say of the attacks: python -m benchmarks.survival.document RESULTS DOCUMENT ... [--check]

RESULTS is made by `python -m benchmarks.survival`. Each text stands between two comments, the first of which
names it: status, attacks, excess or questions. With --check the command only says whether the texts are
already so.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.survival.answers import answers_table
from benchmarks.survival.plan import SEEDS
from benchmarks.survival.results import read_sets
from benchmarks.survival.tables import Sets, attacks_table, excess_table, worlds_of
from recipe.rerule.evaluation.attacks.material import FORGET
from recipe.rerule.process.arguments import ArgumentParser
from recipe.rerule.reporting import markdown
from recipe.rerule.reporting.document import Table

NOT_YET = "No results are committed yet."
_SPAN = re.compile(
    r"(<!-- survival: (?P<name>[^\n]+?) -->\n).*?(<!-- end of survival: (?P=name) -->)", re.DOTALL
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the texts, or check them. 1 where a check fails, 2 where something is wrong."""
    options = _parser().parse_args(arguments)
    try:
        sets = read_sets(options.results)
        written = {path: with_texts(path.read_text(encoding="utf-8"), sets) for path in options.documents}
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    stale = [path for path, text in written.items() if path.read_text(encoding="utf-8") != text]
    if stale and options.check:
        names = ", ".join(map(str, stale))
        print(f"error: {names}: not as in {options.results}; run this without --check", file=sys.stderr)
        return 1
    for path in stale:
        path.write_text(written[path], encoding="utf-8")
        print(f"{path}: written")
    return 0


def with_texts(text: str, sets: Sets | None) -> str:
    """A document with its texts made anew; None where there are no results.

    Raises:
        ValueError: a comment names no text.
    """
    return _SPAN.sub(lambda span: f"{span[1]}{text_named(span['name'], sets)}\n{span[3]}", text)


def text_named(name: str, sets: Sets | None) -> str:
    """One of TEXTS. Raises ValueError where there is none of that name."""
    if name not in TEXTS:
        raise ValueError(f"no text is named {name!r}; there are {', '.join(TEXTS)}")
    return NOT_YET if sets is None else TEXTS[name](sets)


def _status(sets: Sets) -> str:
    seeds = worlds_of(sets)
    named = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    return f"The results rest on {len(seeds)} of the plan's {SEEDS} worlds ({named})."


def _table(made: Callable[[Sets], Table]) -> Callable[[Sets], str]:
    return lambda sets: markdown.markdown_table(made(sets), markdown.plain)


TEXTS: dict[str, Callable[[Sets], str]] = {
    "status": _status,
    "attacks": _table(attacks_table),
    "excess": _table(excess_table),
    "questions": _table(lambda sets: answers_table(sets[FORGET])),
}


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks.survival.document", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("results", type=Path)
    parser.add_argument("documents", type=Path, nargs="+")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a text is not as in RESULTS"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
