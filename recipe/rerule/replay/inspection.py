"""Looking inside a saved replay buffer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .replay import ReplayStateError
from .state import STATE_FILE, read_groups, read_record
from .stored import StoredGroup

MOST_STORED = 5
"""How many of the most often stored prompts a summary names."""


def find(checkpoint: Path) -> Path:
    """The replay folder of a checkpoint: ``checkpoint`` itself, or its folder ``replay``.

    Raises:
        ReplayStateError: neither holds a replay state.
    """
    for folder in (checkpoint, checkpoint / "replay"):
        if (folder / STATE_FILE).is_file():
            return folder
    found = sorted(str(path.parent.parent) for path in checkpoint.glob(f"global_step_*/replay/{STATE_FILE}"))
    hint = f"; it is a run folder with {', '.join(found)}" if found else ""
    raise ReplayStateError(f"{checkpoint} holds no replay state{hint}; give a folder global_step_N")


def summary(folder: Path) -> dict[str, Any]:
    """What a buffer holds, as plain values; bytes are those of the tensors.

    Raises:
        ReplayStateError: the state is damaged or another version's.
    """
    record = read_record(folder)
    groups = read_groups(folder, record)
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
        "draws": _spread([group.draws for group in groups]),
        "mean_reward": _spread([group.mean_reward for group in groups]),
        "signal": _spread([group.signal for group in groups]),
        "prompts": len(prompts),
        "most_stored": prompts.most_common(MOST_STORED),
        "visited_prompts": len(record["visits"]),
        "never_rewarded": sorted(int(index) for index, (_, best) in record["visits"].items() if best <= 0),
    }


def summary_lines(values: dict[str, Any]) -> list[str]:
    """A summary for a person."""
    kinds = "  ".join(f"{kind} {count}" for kind, count in values["sides_and_modes"].items())
    run = "  ".join(f"{setting} {value}" for setting, value in values["run"].items())
    most = "  ".join(f"{index} ({count}x)" for index, count in values["most_stored"])
    never = values["never_rewarded"]
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
        "prompts visited": str(values["visited_prompts"]),
        "of them never rewarded": f"{len(never)}: {', '.join(map(str, never))}" if never else "0",
    }
    return [values["folder"], *(f"  {name:<24} {text}" for name, text in lines.items())]


def group_lines(folder: Path, tokenizer: Any = None) -> list[str]:
    """One line a stored group, oldest first; with a tokenizer its prompt and responses follow.

    Raises:
        ReplayStateError: the state is damaged or another version's.
    """
    lines = [f"{'prompt':>8} {'step':>6} {'side':<6} {'mode':<10} {'reward':>7} {'|A|':>7} {'draws':>5}"]
    for stored in read_groups(folder, read_record(folder)):
        lines.append(
            f"{stored.prompt_index:>8} {stored.step:>6} {stored.side:<6} {stored.mode:<10} "
            f"{stored.mean_reward:>7.3f} {stored.signal:>7.3f} {stored.draws:>5}"
        )
        if tokenizer is not None:
            lines += _texts(stored, tokenizer)
    return lines


def _texts(stored: StoredGroup, tokenizer: Any) -> list[str]:
    group = stored.group()
    lines = [f"    prompt    {tokenizer.decode(group.prompt_ids.tolist())!r}"]
    for reward, ids in zip(
        group.rewards.tolist(), group.response_ids.split(group.lengths.tolist()), strict=True
    ):
        lines.append(f"    {reward:>9.3f} {tokenizer.decode(ids.tolist())!r}")
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
