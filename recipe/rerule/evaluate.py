"""Evaluate models and logs: `python -m recipe.rerule.evaluate {model,score,attack,judge} --help`.

Every number says which convention it follows and comes with what constant refusals would score on the same
probes, and every response is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from recipe.rerule import io, process
from recipe.rerule.evaluation.engine.run import EngineError
from recipe.rerule.evaluation.score_command import add_score_parser
from recipe.rerule.process import ArgumentParser

_DESCRIPTION = """\
Evaluate models, or score what they answered. Every command prints a table and writes a folder with the
numbers, the single answers and the settings. (score only prints.)"""
_EXAMPLES = """\
examples:
  python -m recipe.rerule.evaluate model --platform cpu --probes outputs/quickstart/world/probes.parquet \\
      --model rerule=outputs/quickstart/rerule --out outputs/evaluation
  python -m recipe.rerule.evaluate score --benchmark world --model rerule \\
      --log outputs/evaluation/responses.parquet
  python -m recipe.rerule.evaluate model --help          the options of one command, with more examples

docs/evaluation.md explains the metrics and the files.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 where the input is wrong or a file cannot be read or written; 1 where vLLM fails.

    A process stopped by SIGTERM or SIGINT ends with 143 or 130.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    with process.stoppable():
        options = _parser(given).parse_args(given)
        try:
            return int(options.run(options))
        except (ValueError, OSError) as error:
            return io.fail(error, 2)
        except EngineError as error:
            return io.fail(error, 1)


def _parser(arguments: Sequence[str]) -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m recipe.rerule.evaluate", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_score_parser(commands)
    if arguments[:1] != ["score"]:
        # Their imports take seconds, which scoring a log need not wait for.
        from recipe.rerule.evaluation.attack_command import add_attack_parser
        from recipe.rerule.evaluation.attacks.registry import attacks
        from recipe.rerule.evaluation.judge import add_judge_parser
        from recipe.rerule.evaluation.model_command import add_model_parser

        add_model_parser(commands)
        # Attacks import torch, which takes seconds.
        add_attack_parser(commands, attacks() if arguments[:1] == ["attack"] else {})
        add_judge_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
