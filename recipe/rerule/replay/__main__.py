"""python -m recipe.rerule.replay inspect CHECKPOINT: look inside a saved replay buffer."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from recipe.rerule import io, process
from recipe.rerule.process import ArgumentParser
from recipe.rerule.runs import checkpoints

from .inspection import find, group_lines, group_values, summary, summary_lines
from .replay import ReplayStateError

_SUMMARY = "Look inside the replay buffer that a run saved with its checkpoint."


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0, or 2 when there is no readable replay state."""
    with process.stoppable():
        options = _parser().parse_args(arguments)
        try:
            folder = find(options.checkpoint)
            lines = _lines(folder, options)
        except (ReplayStateError, OSError) as error:
            return io.fail(error, 2)
        _warn_of_incomplete(folder)
        print("\n".join(lines))
        return 0


def _lines(folder: Path, options: argparse.Namespace) -> list[str]:
    found, groups = summary(folder), options.groups or options.tokenizer is not None
    tokenizer = _tokenizer(options.tokenizer)
    if options.json:
        stored = {"stored": group_values(folder, tokenizer)} if groups else {}
        return [json.dumps(found | stored, allow_nan=False)]
    return summary_lines(found) + (["", *group_lines(folder, tokenizer)] if groups else [])


def _warn_of_incomplete(folder: Path) -> None:
    """Say so where the checkpoint around a replay folder is one that no run goes on from."""
    if folder.name != "replay":
        return
    if (problem := checkpoints.problem(folder.parent)) is not None:
        io.warn(
            f"{folder.parent} is no complete checkpoint, so that no run goes on from it: {problem}; its "
            "replay buffer is shown as it was written"
        )


_EXAMPLES = """\
examples:
  python -m recipe.rerule.replay inspect outputs/rerule/global_step_20
      what the buffer of this checkpoint holds, as a summary
  python -m recipe.rerule.replay inspect outputs/rerule/global_step_20 --groups --tokenizer MODEL
      each stored group too, with its prompt and its responses as text
  python -m recipe.rerule.replay inspect outputs/rerule/global_step_20 --groups --json
      the same as one JSON object, for a program
"""


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m recipe.rerule.replay", description=_SUMMARY, epilog=_EXAMPLES)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    inspect = commands.add_parser(
        "inspect",
        help="show what the replay buffer of a checkpoint holds",
        description="Show what the replay buffer of a checkpoint holds. Nothing is changed.",
        epilog=_EXAMPLES,
    )
    inspect.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="a folder global_step_N of a run, or its replay/"
    )
    inspect.add_argument("--groups", action="store_true", help="also one line for each stored group")
    inspect.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="also the texts of each group, decoded with the tokenizer of this model",
    )
    inspect.add_argument(
        "--json", action="store_true", help="print one JSON object instead; with --groups it has `stored`"
    )
    return parser


def _tokenizer(model: str | None) -> Any:
    if model is None:
        return None
    from transformers import AutoTokenizer  # only here: the package itself needs torch alone

    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        reason = io.describe(error)[:200]
        raise ReplayStateError(f"--tokenizer {model} has no tokenizer that can be read: {reason}") from error


if __name__ == "__main__":
    sys.exit(main())
