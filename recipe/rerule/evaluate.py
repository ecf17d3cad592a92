"""Evaluate models and logs: `python -m recipe.rerule.evaluate {model,score,judge,utility} --help`.

Every number says which convention it follows and comes with what constant refusals would score on the same
probes, and every response is kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from recipe.rerule import signals
from recipe.rerule.evaluation.engine.process import EngineError
from recipe.rerule.evaluation.score_command import add_score_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 where the input is wrong or a file cannot be read or written; 1 where vLLM fails.

    A process stopped by SIGTERM or SIGINT ends with 143 or 130.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    with signals.one_line():
        options = _parser(given).parse_args(given)
        try:
            return int(options.run(options))
        except (ValueError, OSError) as error:
            return _fail(error, 2)
        except EngineError as error:
            return _fail(error, 1)


def _fail(error: Exception, exit_code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return exit_code


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recipe.rerule.evaluate", description=__doc__.splitlines()[0]
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_score_parser(commands)
    if arguments[:1] != ["score"]:
        # Their imports take seconds, which scoring a log need not wait for.
        from recipe.rerule.evaluation.model_command import add_model_parser
        from recipe.rerule.evaluation.naturalness.command import add_judge_parser
        from recipe.rerule.evaluation.rwku.utility.command import add_utility_parser

        add_model_parser(commands)
        add_judge_parser(commands)
        add_utility_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
