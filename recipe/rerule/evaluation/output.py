"""The evaluation folder (docs/evaluation.md): all of its files or none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_prep.atomic import new_folder

# Only a folder that holds this file is ours to replace.
_MARKER = "meta.json"


def check_free(folder: Path, overwrite: bool) -> None:
    """Raises ValueError where `folder` exists, unless it is an earlier evaluation and `overwrite`."""
    if not folder.exists():
        return
    if not overwrite:
        raise ValueError(f"{folder} exists already; give another --out, or --overwrite to replace it")
    if not (folder / _MARKER).is_file():
        raise ValueError(
            f"{folder} holds no {_MARKER}, so it is no evaluation to overwrite; give another --out"
        )


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write `files` {name: text} as `folder`, replacing an earlier one only once the new one is complete.

    A name may be a path within the folder.
    """
    with new_folder(folder, overwrite=True, marker=_MARKER) as draft:
        for name, text in files.items():
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def json_text(value: Any) -> str:
    """Indented JSON in UTF-8; refuses NaN and infinity, which are not JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def json_lines(records: list[dict[str, Any]]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)
