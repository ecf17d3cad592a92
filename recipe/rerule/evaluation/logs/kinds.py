"""What a file of per-sample values is of, as far as its keys tell, so that no message blames its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe.rerule.io import parse_json

if TYPE_CHECKING:
    from recipe.rerule.evaluation.scoring import LogScorer, RecordScorer

RESPONSES = ("response", "prediction", "predict")
"""What records call the answer."""
_LONGEST = 1_000_000
"""Bytes of the first line that are looked at: a record of one answer is shorter, a log on one line is not."""


def scorer_of_log(content: Any, known: Iterable[LogScorer]) -> LogScorer | None:
    """The one whose log this is; None where nothing tells."""
    if not isinstance(content, Mapping):
        return None
    found = [scorer for scorer in known if scorer.holds(content)]
    return found[0] if len(found) == 1 else None


def is_record(row: Any) -> bool:
    """Whether this is a record of one answer."""
    return isinstance(row, Mapping) and not row.keys().isdisjoint(RESPONSES)


def scorer_of_record(row: Any, known: Iterable[RecordScorer]) -> RecordScorer | None:
    """The one whose mark the record has; None where it has none, or is no record."""
    marked = (one for one in known if one.mark is not None and is_record(row) and one.mark.found(row))
    return next(marked, None)


def first_row(path: Path) -> Any:
    """The first line of a file as JSON, or the first element of its array; None where it is neither."""
    try:
        with path.open("rb") as file:
            lines = iter(lambda: file.readline(_LONGEST), b"")
            line = next((line for line in lines if line.strip()), b"")
            if line.strip() == b"[":
                line += next(lines, b"").rstrip(b",\r\n") + b"]"
            row = parse_json(line)
    except (OSError, ValueError):
        return None
    return row[0] if isinstance(row, list) and row else row


def foreign(path: Path, what: str, asked: str, others: Iterable[str], hint: str = "") -> str:
    """The message where a file holds something else than is asked for, and `others` are what to ask for."""
    names = " or ".join(others)
    return f"{path} holds {what}, and --benchmark is {asked}: score it with --benchmark {names}{hint}"
