"""A target's files of utility sets, membership texts and instructions, as RWKU has them: one folder a
target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def utility_rows(folder: Path) -> dict[str, list[Row]]:
    """The rows of every utility set that the folder has, by name: mmlu, bbh, truthfulqa, triviaqa.

    Files are retain_mmlu.json, retain_bbh.json, truthful.json and triviaqa.json. Of the first two, the form
    NAME.compact.json is read too: {few_shot_field, few_shot_by_task, rows}, where the field of a row is that
    of its task.

    Raises:
        ValueError: none is there, or a file is not as described, named with its row.
    """
    names = {"mmlu": "retain_mmlu", "bbh": "retain_bbh", "truthfulqa": "truthful", "triviaqa": "triviaqa"}
    fields: dict[str, dict[str, type]] = {
        "mmlu": {"task": str, "question": str, "choices": list, "answer": int, "examples": list},
        "bbh": {"task": str, "question": str, "answer": str, "cot": str},
        "truthfulqa": {"question": str, "mc1_targets": dict, "mc2_targets": dict},
        "triviaqa": {"question": str, "answers": list},
    }
    found = {
        name: _checked(path, fields[name]) for name, file in names.items() if (path := _file(folder, file))
    }
    if not found:
        raise ValueError(f"{folder}: has none of {', '.join(f'{file}.json' for file in names.values())}")
    return found


def membership_texts(folder: Path) -> dict[str, list[str]]:
    """The texts of forget_mia.json and retain_mia.json, as {"forget": [...], "retain": [...]}.

    Raises ValueError where a file is missing or wrong.
    """
    return {side: _column(folder, f"{side}_mia", "text") for side in ("forget", "retain")}


def instructions(folder: Path) -> list[str]:
    """The instructions of fluency.json. Raises ValueError where it is missing or wrong."""
    return _column(folder, "fluency", "instruction")


def texts_of(folder: Path, name: str) -> list[str]:
    """The texts of NAME.json: an array of texts, or of objects with `text`.

    Raises ValueError where the file is missing or wrong.
    """
    path = _file(folder, name)
    if path is None:
        raise ValueError(f"{folder}: {name}.json is missing")
    rows = _rows(path)
    if isinstance(rows, list) and rows and all(isinstance(row, str) and row.strip() for row in rows):
        return rows
    return [row["text"] for row in _checked(path, {"text": str})]


def _column(folder: Path, file: str, field: str) -> list[str]:
    path = _file(folder, file)
    if path is None:
        raise ValueError(f"{folder}: {file}.json is missing")
    return [row[field] for row in _checked(path, {field: str})]


def _file(folder: Path, name: str) -> Path | None:
    candidates = (folder / f"{name}.json", folder / f"{name}.compact.json")
    return next((path for path in candidates if path.is_file()), None)


def _checked(path: Path, fields: dict[str, type]) -> list[Row]:
    rows = _rows(path)
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path}: holds no rows")
    for number, row in enumerate(rows):
        for field, kind in fields.items():
            if not isinstance(row, dict) or type(row.get(field)) is not kind or row[field] in ("", [], {}):
                raise ValueError(f"{path}: row {number}: {field} is missing, empty or no {kind.__name__}")
    return rows


def _rows(path: Path) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not path.name.endswith(".compact.json"):
            return content
        field, shared = content["few_shot_field"], content["few_shot_by_task"]
        return [row | {field: shared[row["task"]]} for row in content["rows"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: not as expected ({type(error).__name__}: {error})") from error
