"""What a file of per-sample values is of, as far as its keys tell, so that no message blames its values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe.rerule.process.json_input import parse

TITLES = {"tofu": "TOFU", "muse-books": "MUSE", "rwku": "RWKU", "world": "the embedded world"}
"""Benchmarks as `evaluate score` calls them, and as a reader does."""
_LOGS = {
    "muse-books": ("knowmem_ROUGE", "verbmem_ROUGE"),
    "tofu": ("_Q_A_Prob", "_Q_A_ROUGE", "_Q_A_PARA_Prob", "_Q_A_PERT_Prob", "_truth_ratio", "_Truth_Ratio"),
}
"""By benchmark, how names of metrics end that only its logs hold."""
_LONGEST = 1_000_000
"""Bytes of the first line that are looked at: a record of one answer is shorter, a log on one line is not."""
_LOCUSLAB = "eval_log_forget.json"


def kind_of_log(content: Any) -> str | None:
    """The benchmark whose log this is, "tofu" or "muse-books"; None where nothing tells."""
    if not isinstance(content, Mapping):
        return None
    if _LOCUSLAB in content:
        return "tofu"
    found = [kind for kind, endings in _LOGS.items() if any(str(name).endswith(endings) for name in content)]
    return found[0] if len(found) == 1 else None


def kind_of_record(row: Any) -> str | None:
    """The benchmark whose record of one answer this is, "rwku" or "world"; None where it is none."""
    if not isinstance(row, Mapping) or not {"response", "prediction", "predict"} & row.keys():
        return None
    return "rwku" if "target" in row or "level" in row else "world"


def first_row(path: Path) -> Any:
    """The first line of a file as JSON, or the first element of its array; None where it is neither."""
    try:
        with path.open("rb") as file:
            lines = iter(lambda: file.readline(_LONGEST), b"")
            line = next((line for line in lines if line.strip()), b"")
            row = parse(line if line.strip() != b"[" else line + next(lines, b"").rstrip(b",\r\n") + b"]")
    except (OSError, ValueError):
        return None
    return row[0] if isinstance(row, list) and row else row


def foreign(path: Path, kind: str, asked: str) -> str:
    """The message where a file is of another benchmark than was asked for."""
    what = "answers one by one" if kind in ("rwku", "world") else f"a log of {TITLES[kind]}"
    hint = "; logs of ours lie in logs/ of an evaluation" if kind in ("rwku", "world") else ""
    other = "rwku or world" if kind in ("rwku", "world") else kind
    return f"{path} holds {what}, and --benchmark is {asked}: score it with --benchmark {other}{hint}"
