"""python -m data_prep BENCHMARK ...: from a benchmark's raw material to parquet rows."""

from __future__ import annotations

import sys

from data_prep.custom import command as custom
from data_prep.muse_books import command as muse_books
from data_prep.muse_news import command as muse_news
from data_prep.rwku import command as rwku
from data_prep.tofu import command as tofu
from data_prep.world import command as world
from recipe.rerule import io, process
from recipe.rerule.process import ArgumentParser

BENCHMARKS = {
    "world": world,
    "tofu": tofu,
    "rwku": rwku,
    "muse-books": muse_books,
    "muse-news": muse_news,
    "custom": custom,
}

_DESCRIPTION = """\
Make the rows of a benchmark: a folder with train, val, sft and probes.parquet and manifest.json, which
stage 1, stage 2 and the evaluation read. It also has files for methods without a reward (docs/files.md). The
folder appears when it is complete."""
_EXAMPLES = """\
examples:
  python -m data_prep world --out outputs/world
  python -m data_prep tofu --source locuslab/TOFU --out data/tofu
  python -m data_prep custom --source mine.csv --out data/mine
  python -m data_prep tofu --help          the options of one benchmark, with more examples
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs one benchmark's command; returns the exit code, 2 for a wrong input.

    A process stopped by SIGTERM or SIGINT ends with 143 or 130, and leaves no draft.
    """
    with process.stoppable():
        options = _parser().parse_args(arguments)
        try:
            BENCHMARKS[options.benchmark].run(options)
        except (ValueError, OSError) as error:
            return io.fail(error, 2)
        return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m data_prep", description=_DESCRIPTION, epilog=_EXAMPLES)
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, module in BENCHMARKS.items():
        command = commands.add_parser(
            name, help=module.SUMMARY, description=module.SUMMARY, epilog=module.EXAMPLE
        )
        module.add_arguments(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
