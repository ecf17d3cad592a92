"""python -m data_prep BENCHMARK ...: from a benchmark's raw material to parquet rows."""

from __future__ import annotations

import argparse
import sys

from data_prep.custom import command as custom
from data_prep.muse_books import command as muse_books
from data_prep.rwku import command as rwku
from data_prep.tofu import command as tofu
from data_prep.world import command as world
from recipe.rerule import signals

BENCHMARKS = {"world": world, "tofu": tofu, "rwku": rwku, "muse-books": muse_books, "custom": custom}


def main(arguments: list[str] | None = None) -> int:
    """Runs one benchmark's command; returns the exit code, 2 for a wrong input.

    A process stopped by SIGTERM or SIGINT ends with 143 or 130, and leaves no draft.
    """
    with signals.one_line():
        options = _parser().parse_args(arguments)
        try:
            BENCHMARKS[options.benchmark].run(options)
        except (ValueError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m data_prep", description="Make a benchmark's parquet rows."
    )
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, module in BENCHMARKS.items():
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.SUMMARY,
            epilog=module.EXAMPLE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
