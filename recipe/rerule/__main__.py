"""One command for everything: `rerule COMMAND ...`, or `python -m recipe.rerule COMMAND ...`.

Each command is a module that `python -m` runs too; it gets the rest of the command line as it is.
"""

from __future__ import annotations

import difflib
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from recipe.rerule import io


@dataclass(frozen=True)
class Command:
    """A module that `python -m` runs.

    Attributes:
        module: its name.
        does: what it does, in one line of the help.
        first: words that come before the user's.
    """

    module: str
    does: str
    first: tuple[str, ...] = ()


COMMANDS = {
    "forget": Command("recipe.rerule.forget", "all below in one: from a file of facts to a verdict"),
    "about": Command("recipe.rerule.about", "write what a model knows about a thing, as rows for forget"),
    "data": Command("data_prep", "make the rows of all stages and the probes of a benchmark"),
    "sft": Command("recipe.rerule.sft", "stage 1: teach a model to refuse (rejection steering)"),
    "train": Command("recipe.rerule.main", "stage 2: train by RULE, or by ReRULE with replay"),
    "unlearn": Command(
        "recipe.rerule.unlearn", "train by a method that is not reinforcement (--list shows them)"
    ),
    "tune": Command("recipe.rerule.tune", "try a few learning rates for few steps, and say which to take"),
    "task-vector": Command(
        "recipe.rerule.task_vector", "unlearn by subtracting what a further training has changed"
    ),
    "evaluate": Command("recipe.rerule.evaluate", "ask models and score their answers: model, score, judge"),
    "attack": Command(
        "recipe.rerule.evaluate", "attack unlearned models and measure what comes back", ("attack",)
    ),
    "report": Command(
        "recipe.rerule.report", "write one page with the tables and figures of runs and evaluations"
    ),
    "export": Command(
        "recipe.rerule.export", "write a trained model as a folder to publish, with a model card"
    ),
    "check": Command(
        "recipe.rerule.check", "check settings, rows and model, or the installation; start nothing"
    ),
    "inspect": Command("recipe.rerule.replay", "show what is in a saved replay buffer", ("inspect",)),
    "minimal": Command("recipe.rerule.minimal", "run the whole method in one small process, on a laptop"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command as `python -m` would. Exit code 2 where there is no such command; else the command's."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if not given or given[0] in {"-h", "--help", "help"}:
        print(usage())
        return 0 if given else 2
    if given[0] not in COMMANDS:
        return io.fail(ValueError(_unknown(given[0])), 2)
    command = COMMANDS[given[0]]
    sys.argv = [command.module, *command.first, *given[1:]]
    runpy.run_module(command.module, run_name="__main__", alter_sys=True)
    return 0


def usage() -> str:
    """The help: one line a command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.does}" for name, command in COMMANDS.items()]
    return "\n".join(
        (
            "usage: rerule COMMAND ...",
            "",
            "Make a language model forget one thing and keep everything else.",
            "",
            "commands, in the order in which they are used:",
            *lines,
            "",
            "rerule COMMAND --help explains a command. Each command is also a module: rerule train is",
            "python -m recipe.rerule.main. docs/quickstart.md explains a whole run.",
        )
    )


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"{name!r} is no command of rerule; " + (
        f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
    )


if __name__ == "__main__":
    sys.exit(main())
