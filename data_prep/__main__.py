"""python -m data_prep BENCHMARK ...: from a benchmark's raw material to parquet rows."""

from __future__ import annotations

import sys

from data_prep import custom, muse, rtofu, rwku, tofu, wmdp
from data_prep.world import build as world
from recipe.rerule import io, process

BENCHMARKS = {
    "world": world.COMMAND,
    "tofu": tofu.COMMAND,
    "rtofu": rtofu.COMMAND,
    "rwku": rwku.COMMAND,
    "muse-books": muse.BOOKS_COMMAND,
    "muse-news": muse.NEWS_COMMAND,
    "wmdp": wmdp.COMMAND,
    "custom": custom.COMMAND,
}

_DESCRIPTION = """\
Make the rows of a benchmark: a folder with train, val, sft and probes.parquet and manifest.json, which
stage 1, stage 2 and the evaluation read. It also has files for methods without a reward (docs/data.md). The
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
    parser = process.ArgumentParser("python -m data_prep", description=_DESCRIPTION, epilog=_EXAMPLES)
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, command in BENCHMARKS.items():
        about = command.summary
        command.add_arguments(
            commands.add_parser(name, help=about, description=about, epilog=command.example)
        )
    with process.stoppable():
        options = parser.parse_args(arguments)
        try:
            BENCHMARKS[options.benchmark].run(options)
        except (ValueError, OSError) as error:
            return io.fail(error, 2)
        return 0


if __name__ == "__main__":
    sys.exit(main())
