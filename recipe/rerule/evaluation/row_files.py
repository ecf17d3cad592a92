"""JSON files of rows and of texts in a benchmark's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


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
    return [row["text"] for row in checked_rows(path, {"text": str})]


def file_of(folder: Path, name: str) -> Path | None:
    candidates = (folder / f"{name}.json", folder / f"{name}.compact.json")
    return next((path for path in candidates if path.is_file()), None)


def checked_rows(path: Path, fields: dict[str, type]) -> list[Row]:
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
