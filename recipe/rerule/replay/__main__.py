"""python -m recipe.rerule.replay inspect CHECKPOINT: look inside a saved replay buffer."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipe.rerule import io, process
from recipe.rerule.process import ArgumentParser
from recipe.rerule.runs import checkpoints

from .buffer import StoredGroup
from .replay import ReplayStateError
from .state import STATE_FILE, read_groups, read_record

_SUMMARY = "Look inside the replay buffer that a run saved with its checkpoint."
_MOST_STORED = 5
"""How many of the most often stored prompts a summary names."""


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0, or 2 when there is no readable replay state."""
    with process.stoppable():
        options = _parser().parse_args(arguments)
        try:
            folder = _find(options.checkpoint)
            lines = _lines(folder, options)
        except (ReplayStateError, OSError) as error:
            return io.fail(error, 2)
        problem = checkpoints.problem(folder.parent) if folder.name == "replay" else None
        if problem is not None:
            io.warn(
                f"{folder.parent} is no complete checkpoint, so that no run goes on from it: {problem}; its "
                "replay buffer is shown as it was written"
            )
        print("\n".join(lines))
        return 0


def _lines(folder: Path, options: argparse.Namespace) -> list[str]:
    record = read_record(folder)
    groups = read_groups(folder, record)
    summary, tokenizer = _summary(folder, record, groups), _tokenizer(options.tokenizer)
    values = [_values(stored, tokenizer) for stored in groups]
    is_asked = options.groups or options.tokenizer is not None
    if options.json:
        return [json.dumps(summary | ({"stored": values} if is_asked else {}), allow_nan=False)]
    return [*_summary_lines(summary), *(_group_lines(values) if is_asked else [])]


def _find(checkpoint: Path) -> Path:
    """The replay folder of a checkpoint: ``checkpoint`` itself, or its folder ``replay``.

    Raises ReplayStateError: neither holds a replay state.
    """
    for folder in (checkpoint, checkpoint / "replay"):
        if (folder / STATE_FILE).is_file():
            return folder
    if (checkpoint / "complete.json").is_file():
        raise ReplayStateError(
            f"{checkpoint} holds no replay state: its run had no replay (replay.enable=false)"
        )
    found = sorted(str(path.parent.parent) for path in checkpoint.glob(f"global_step_*/replay/{STATE_FILE}"))
    hint = f"; it is a run folder with {', '.join(found)}" if found else ""
    raise ReplayStateError(f"{checkpoint} holds no replay state{hint}; give a folder global_step_N")


def _summary(folder: Path, record: dict[str, Any], groups: Sequence[StoredGroup]) -> dict[str, Any]:
    """What a buffer holds, as plain values; bytes are those of the tensors."""
    prompts = Counter(group.prompt_index for group in groups)
    return {
        "folder": str(folder),
        "run": record["run"],
        "gate_open": record["gate_open"],
        "groups": len(groups),
        "rollouts": sum(group.n for group in groups),
        "response_tokens": sum(group.tokens for group in groups),
        "bytes": sum(group.nbytes for group in groups),
        "sides_and_modes": dict(sorted(Counter(f"{group.side}/{group.mode}" for group in groups).items())),
        "without_signal": sum(not group.has_signal for group in groups),
        "step": _spread([group.step for group in groups]),
        "draws": _spread([group.reuse_count for group in groups]),
        "mean_reward": _spread([group.mean_reward for group in groups]),
        "signal": _spread([group.signal for group in groups]),
        "prompts": len(prompts),
        "most_stored": prompts.most_common(_MOST_STORED),
    }


def _summary_lines(values: dict[str, Any]) -> list[str]:
    """A summary for a person."""
    kinds = "  ".join(f"{kind} {count}" for kind, count in values["sides_and_modes"].items())
    run = "  ".join(f"{setting} {value}" for setting, value in values["run"].items())
    most = "  ".join(f"{index} ({count}x)" for index, count in values["most_stored"])
    lines = {
        "saved by a run with": run or "nothing noted",
        "replay": "started" if values["gate_open"] else "not started",
        "groups": f"{values['groups']} with {values['rollouts']} rollouts, {values['response_tokens']} "
        f"response tokens, {values['bytes'] / 1e6:.1f} MB",
        "side and mode": kinds or "none",
        "without policy gradient": str(values["without_signal"]),
        "stored at step": _range(values["step"], "d"),
        "times drawn": _range(values["draws"], "d"),
        "mean reward": _range(values["mean_reward"], ".3f"),
        "mean |advantage|": _range(values["signal"], ".3f"),
        "prompts": f"{values['prompts']}, most often {most}" if most else "0",
    }
    return [values["folder"], *(f"  {name:<24} {text}" for name, text in lines.items())]


def _values(stored: StoredGroup, tokenizer: Any) -> dict[str, Any]:
    """A stored group as plain values; with a tokenizer also its texts."""
    group = stored.group()
    values = {
        "prompt": stored.prompt_index,
        "step": stored.step,
        "side": stored.side,
        "mode": stored.mode,
        "mean_reward": stored.mean_reward,
        "signal": stored.signal,
        "draws": stored.reuse_count,
        "rewards": group.rewards.tolist(),
    }
    if tokenizer is None:
        return values
    responses = group.response_ids.split(group.lengths.tolist())
    return values | {
        "prompt_text": tokenizer.decode(group.prompt_ids.tolist()),
        "responses": [tokenizer.decode(ids.tolist()) for ids in responses],
    }


def _group_lines(groups: Sequence[dict[str, Any]]) -> list[str]:
    """The stored groups for a person: a line a group, oldest first, and its texts below it."""
    lines = ["", f"{'prompt':>8} {'step':>6} {'side':<6} {'mode':<10} {'reward':>7} {'|A|':>7} {'draws':>5}"]
    for values in groups:
        lines.append(
            f"{values['prompt']:>8} {values['step']:>6} {values['side']:<6} {values['mode']:<10} "
            f"{values['mean_reward']:>7.3f} {values['signal']:>7.3f} {values['draws']:>5}"
        )
        if "responses" in values:
            lines.append(f"    prompt    {values['prompt_text']!r}")
            pairs = zip(values["rewards"], values["responses"], strict=True)
            lines += [f"    {reward:>9.3f} {text!r}" for reward, text in pairs]
    return lines


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}


def _range(spread: dict[str, float] | None, form: str) -> str:
    if spread is None:
        return "-"
    mean_form = ".1f" if form == "d" else form
    return f"{spread['min']:{form}} to {spread['max']:{form}}, mean {spread['mean']:{mean_form}}"


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
