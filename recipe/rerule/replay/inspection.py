"""Looking inside a saved replay buffer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .buffer import StoredGroup
from .replay import ReplayStateError
from .state import STATE_FILE, read_groups, read_record

MOST_STORED = 5
"""How many of the most often stored prompts a summary names."""


def find(checkpoint: Path) -> Path:
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


def summary(folder: Path) -> dict[str, Any]:
    """What a buffer holds, as plain values; bytes are those of the tensors.

    Raises ReplayStateError: the state is damaged or another version's.
    """
    record, groups = _read(folder)
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
        "most_stored": prompts.most_common(MOST_STORED),
    }


def summary_lines(values: dict[str, Any]) -> list[str]:
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


def group_values(folder: Path, tokenizer: Any = None) -> list[dict[str, Any]]:
    """The stored groups as plain values, oldest first; with a tokenizer also their texts.

    Raises ReplayStateError: the state is damaged or another version's.
    """
    return [_values(stored, tokenizer) for stored in _read(folder)[1]]


def group_lines(folder: Path, tokenizer: Any = None) -> list[str]:
    """The same for a person: a line a group, and its texts below it.

    Raises ReplayStateError: the state is damaged or another version's.
    """
    head = f"{'prompt':>8} {'step':>6} {'side':<6} {'mode':<10} {'reward':>7} {'|A|':>7} {'draws':>5}"
    return [head, *(line for values in group_values(folder, tokenizer) for line in _group_lines(values))]


def _values(stored: StoredGroup, tokenizer: Any) -> dict[str, Any]:
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


def _group_lines(values: dict[str, Any]) -> list[str]:
    lines = [
        f"{values['prompt']:>8} {values['step']:>6} {values['side']:<6} {values['mode']:<10} "
        f"{values['mean_reward']:>7.3f} {values['signal']:>7.3f} {values['draws']:>5}"
    ]
    if "responses" in values:
        lines.append(f"    prompt    {values['prompt_text']!r}")
        pairs = zip(values["rewards"], values["responses"], strict=True)
        lines += [f"    {reward:>9.3f} {text!r}" for reward, text in pairs]
    return lines


def _read(folder: Path) -> tuple[dict[str, Any], list[StoredGroup]]:
    """The record and the groups of a saved state. Raises ReplayStateError."""
    record = read_record(folder)
    return record, read_groups(folder, record)


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}


def _range(spread: dict[str, float] | None, form: str) -> str:
    if spread is None:
        return "-"
    mean_form = ".1f" if form == "d" else form
    return f"{spread['min']:{form}} to {spread['max']:{form}}, mean {spread['mean']:{mean_form}}"
