"""The options of `evaluate attack`."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.attack_command.budget import BUDGETS
from recipe.rerule.evaluation.attack_command.checked import CONTROL, ORIGINAL
from recipe.rerule.evaluation.attack_command.command import run_attack
from recipe.rerule.evaluation.attacks.interface import Attack
from recipe.rerule.evaluation.attacks.registry import DEFAULT
from recipe.rerule.evaluation.engine.models import add_template_argument
from recipe.rerule.evaluation.engine.run import add_decoding_arguments
from recipe.rerule.evaluation.registry import add_benchmark_arguments, benchmarks
from recipe.rerule.platform import PLATFORMS
from recipe.rerule.process.arguments import positive

_DESCRIPTION = """\
Attack models that have unlearned something. Compare what comes back with the original model and with a model
that never knew the facts. The command writes a folder with the numbers and prints a table. It needs vLLM."""
_EXAMPLE = """\
examples:
  python -m recipe.rerule.evaluate attack --platform cpu --probes world/probes.parquet \\
      --train world/train.parquet --model original=world/model --model rerule=outputs/rerule \\
      --control world/retain_model --out outputs/attacks
      all attacks of the quick budget
  python -m recipe.rerule.evaluate attack --platform cpu --probes probes.parquet --model mine=FOLDER \\
      --attacks prefill samples quantise_4 --out outputs/attacks
      three attacks on one model; without a never-knew model no E is given

docs/attacks.md says what each attack tells and does not tell.
"""


def add_attack_parser(commands: Any, known: Mapping[str, Attack]) -> None:
    """Adds `attack` to the subcommands of `evaluate`; its help lists the attacks of `known`."""
    summary = "attack models, and say what has survived unlearning"
    described = f"{_DESCRIPTION}\n\nattacks:\n{list_of(known)}"
    parser = commands.add_parser("attack", help=summary, description=described, epilog=_EXAMPLE)
    parser.set_defaults(run=run_attack)
    _add_inputs(parser)
    parser.add_argument(
        "--attacks",
        nargs="+",
        default=[DEFAULT],
        metavar="NAME",
        help=f"the attacks to make (default: {DEFAULT}, which stands for those marked * above)",
    )
    parser.add_argument(
        "--budget",
        choices=tuple(BUDGETS),
        default="quick",
        help="quick: some probes of each fact, one seed; full: all probes, three seeds, more steps and "
        "samples (default: %(default)s)",
    )
    parser.add_argument(
        "--folds", type=int, choices=(2,), default=2, help="halves of the facts in relearning: always 2"
    )
    parser.add_argument(
        "--seeds", type=positive, metavar="N", help="repetitions of relearning (default: the budget's)"
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON on standard output")
    add_decoding_arguments(parser)
    add_benchmark_arguments(parser, benchmarks())


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    """What is read and where it is written."""
    parser.add_argument(
        "--model", action="append", required=True, metavar="NAME=PATH",
        help="as for `evaluate model`; repeat the option for more models. The model before unlearning must "
        f"have the name {ORIGINAL}",
    )  # fmt: skip
    parser.add_argument(
        "--control", metavar="PATH",
        help=f"a model that never knew the facts; it is called {CONTROL} in the results. Without it, E is "
        "not given",
    )  # fmt: skip
    add_template_argument(parser)
    parser.add_argument(
        "--probes", type=Path, required=True, metavar="FILE",
        help="probes.parquet, made by python -m data_prep",
    )  # fmt: skip
    parser.add_argument(
        "--train", type=Path, metavar="FILE",
        help="train.parquet of the same data, for relearning and many-shot prompts",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace earlier results in --out")
    parser.add_argument(
        "--cache", type=Path, metavar="FOLDER",
        help="keep finished attacks there for later commands, which then do not attack the same models again",
    )  # fmt: skip
    parser.add_argument("--keep-models", action="store_true", help="keep the changed models, in --out")
    parser.add_argument(
        "--platform", choices=PLATFORMS, default="gpu", help="where vLLM runs (default: %(default)s)"
    )


def list_of(known: Mapping[str, Attack]) -> str:
    """A line or two for each attack; those of DEFAULT are marked."""
    lines = [
        textwrap.fill(
            f"{'*' if attack.default else ' '} {name}: {attack.tells}",
            100,
            initial_indent="  ",
            subsequent_indent="      ",
        )
        for name, attack in known.items()
    ]
    return "\n".join(lines)
