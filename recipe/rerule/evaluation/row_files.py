"""JSON files of rows, texts and records that benchmarks bring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recipe.rerule.io import parse_json, read_json, read_lines

Row = dict[str, Any]
_LONGEST = 1_000_000
"""Bytes of the first line that are looked at: a record of one answer is shorter, a log on one line is not."""


def texts_of(folder: Path, name: str) -> list[str]:
    """The texts of NAME.json: an array of texts, or of objects with `text`.

    Raises ValueError where the file is missing or wrong.
    """
    path = file_of(folder, name)
    if path is None:
        raise ValueError(f"{folder}: {name}.json is missing")
    rows = _content(path)
    if isinstance(rows, list) and rows and all(isinstance(row, str) and row.strip() for row in rows):
        return rows
    return column(folder, name, "text")


def column(folder: Path, name: str, field: str) -> list[str]:
    """A field of all rows of NAME.json. Raises ValueError where the file, or a text in it, is missing or
    wrong."""
    path = file_of(folder, name)
    if path is None:
        raise ValueError(f"{folder}: {name}.json is missing")
    texts = [row[field] for row in checked_rows(path, {field: str})]
    if not all(text.strip() for text in texts):
        raise ValueError(f"{path}: row {[not text.strip() for text in texts].index(True)}: {field} is empty")
    return texts


def file_of(folder: Path, name: str) -> Path | None:
    """NAME.json or NAME.compact.json; None where there is neither."""
    candidates = (folder / f"{name}.json", folder / f"{name}.compact.json")
    return next((path for path in candidates if path.is_file()), None)


def checked_rows(path: Path, fields: dict[str, type]) -> list[Row]:
    """The rows of a file, each with these fields. Raises ValueError naming file, row and field."""
    rows = _content(path)
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path}: holds no rows")
    for number, row in enumerate(rows):
        for field, kind in fields.items():
            if not isinstance(row, dict) or type(row.get(field)) is not kind or row[field] in ("", [], {}):
                raise ValueError(f"{path}: row {number}: {field} is missing, empty or no {kind.__name__}")
    return rows


def _content(path: Path) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not path.name.endswith(".compact.json"):
            return content
        field, shared = content["few_shot_field"], content["few_shot_by_task"]
        return [row | {field: shared[row["task"]]} for row in content["rows"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: not as expected ({type(error).__name__}: {error})") from error


def first_record(path: Path) -> Any:
    """The first line of a file as JSON, or the first element of its array; None where it is neither."""
    try:
        with path.open("rb") as file:
            lines = iter(lambda: file.readline(_LONGEST), b"")
            line = next((line for line in lines if line.strip()), b"")
            row = parse_json(
                line if line.strip() != b"[" else line + next(lines, b"").rstrip(b",\r\n") + b"]"
            )
    except (OSError, ValueError):
        return None
    if isinstance(row, dict) and isinstance(row.get("results"), list):
        row = row["results"]
    return row[0] if isinstance(row, list) and row else row


def read_records(path: Path) -> list[Any]:
    """The rows of JSON lines, of a JSON array, or of an object that holds the array as `results`.

    Raises:
        ValueError: no readable text, none of these, or no rows.
    """
    with path.open("rb") as file:
        is_array = file.read(64).lstrip().startswith(b"[")
    if isinstance(first_record(path), dict) and not is_array:
        rows = [row for _, row in read_lines(path, nan=True)]
        whole = rows[0] if len(rows) == 1 else rows
    else:
        whole = read_json(path, nan=True)
    if isinstance(whole, dict):
        whole = whole["results"] if isinstance(whole.get("results"), list) else [whole]
    if not isinstance(whole, list) or not whole:
        raise ValueError(f"{path} holds no records, nor a list of them")
    return whole
