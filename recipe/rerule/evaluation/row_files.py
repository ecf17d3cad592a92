"""JSON files of rows and texts that benchmarks bring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def texts_of(folder: Path, name: str) -> list[str]:
    """The texts of NAME.json: an array of texts, or of objects with `text`.

    Raises ValueError where the file is missing or wrong.
    """
    rows = _content(file_of(folder, name) or folder / f"{name}.json")
    if isinstance(rows, list) and rows and all(isinstance(row, str) and row.strip() for row in rows):
        return rows
    return column(folder, name, "text")


def column(folder: Path, name: str, field: str) -> list[str]:
    """A field of all rows of NAME.json. Raises ValueError where the file, or a text in it, is missing or
    wrong."""
    return [
        row[field] for row in checked_rows(file_of(folder, name) or folder / f"{name}.json", {field: str})
    ]


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
            value = row.get(field) if isinstance(row, dict) else None
            if type(value) is not kind or (not value and kind is not int) or str(value).isspace():
                raise ValueError(f"{path}: row {number}: {field} is missing, empty or no {kind.__name__}")
    return rows


def _content(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"{path.parent}: {path.name} is missing")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not path.name.endswith(".compact.json"):
            return content
        field, shared = content["few_shot_field"], content["few_shot_by_task"]
        return [row | {field: shared[row["task"]]} for row in content["rows"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: not as expected ({type(error).__name__}: {error})") from error
