"""One command for everything: `rerule COMMAND ...`, or `python -m recipe.rerule COMMAND ...`.

Each command is a module that `python -m` runs too; it gets the rest of the command line as it is.
"""

from __future__ import annotations

import difflib
import runpy
import sys
from collections.abc import Sequence

from recipe.rerule import io

COMMANDS: dict[str, tuple[str, str]] = {
    "forget": ("recipe.rerule.forget", "all below in one: from a file of facts to a verdict"),
    "about": ("recipe.rerule.about", "write what a model knows about a thing, as rows for forget"),
    "data": ("data_prep", "make the rows of all stages and the probes of a benchmark"),
    "sft": ("recipe.rerule.sft", "stage 1: teach a model to refuse (rejection steering)"),
    "train": ("recipe.rerule.main", "stage 2: train by RULE, or by ReRULE with replay"),
    "unlearn": ("recipe.rerule.unlearn", "train by a method that is not reinforcement (--list shows them)"),
    "tune": ("recipe.rerule.tune", "try a few learning rates for few steps, and say which to take"),
    "task-vector": (
        "recipe.rerule.task_vector",
        "unlearn by subtracting what a further training has changed",
    ),
    "evaluate": ("recipe.rerule.evaluate", "ask models and score their answers: model, score, judge"),
    "attack": ("recipe.rerule.evaluate attack", "attack unlearned models and measure what comes back"),
    "report": ("recipe.rerule.report", "write one page with the tables and figures of runs and evaluations"),
    "export": ("recipe.rerule.export", "write a trained model as a folder to publish, with a model card"),
    "check": ("recipe.rerule.check", "check settings, rows and model, or the installation; start nothing"),
    "inspect": ("recipe.rerule.replay inspect", "show what is in a saved replay buffer"),
    "minimal": ("recipe.rerule.minimal", "run the whole method in one small process, on a laptop"),
}
"""By name: the module that `python -m` runs, and words before the user's; and a line of the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command as `python -m` would. Exit code 2 where there is no such command; else the command's."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if not given or given[0] in {"-h", "--help", "help"}:
        print(usage())
        return 0 if given else 2
    if given[0] not in COMMANDS:
        near = difflib.get_close_matches(given[0], COMMANDS, n=1)
        told = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
        return io.fail(ValueError(f"{given[0]!r} is no command of rerule; {told}"), 2)
    module, *first = COMMANDS[given[0]][0].split()
    sys.argv = [module, *first, *given[1:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def usage() -> str:
    """The help: one line a command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {does}" for name, (_, does) in COMMANDS.items()]
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


if __name__ == "__main__":
    sys.exit(main())
