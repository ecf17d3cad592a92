"""python -m recipe.rerule.replay inspect CHECKPOINT: look inside a saved replay buffer."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .inspection import find, group_lines, summary, summary_lines
from .replay import ReplayStateError


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0, or 2 when there is no readable replay state."""
    options = _parser().parse_args(arguments)
    try:
        folder = find(options.checkpoint)
        if options.json:
            print(json.dumps(summary(folder)))
            return 0
        lines = summary_lines(summary(folder))
        if options.groups or options.tokenizer:
            lines += ["", *group_lines(folder, _tokenizer(options.tokenizer))]
    except (ReplayStateError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recipe.rerule.replay", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="what the buffer of a checkpoint holds")
    inspect.add_argument("checkpoint", type=Path, help="a folder global_step_N of a run")
    inspect.add_argument("--groups", action="store_true", help="one line a stored group as well")
    inspect.add_argument(
        "--tokenizer", metavar="MODEL", help="and its texts, decoded with this model's tokenizer"
    )
    inspect.add_argument("--json", action="store_true", help="the summary as one JSON object instead")
    return parser


def _tokenizer(model: str | None) -> Any:
    if model is None:
        return None
    from transformers import AutoTokenizer  # only here: the package itself needs torch alone

    return AutoTokenizer.from_pretrained(model)


if __name__ == "__main__":
    sys.exit(main())
