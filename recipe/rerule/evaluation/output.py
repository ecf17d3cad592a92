"""The evaluation folder (docs/evaluation.md): all of its files or none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe.rerule.io import Kind, new_folder, stamp

EVALUATION = Kind("rerule/evaluation", "meta.json")
UTILITY = Kind("rerule/utility", "meta.json")


def write_folder(
    folder: Path, kind: Kind, marker: Mapping[str, Any], files: Mapping[str, str], overwrite: bool
) -> None:
    """Write `files` {name: text} and the marker of `kind` as `folder`, once they are complete.

    Args:
        folder: where an earlier one is replaced, if `overwrite` says so.
        marker: what the marker says in addition to what makes the folder ours.
        files: whose names may be paths within the folder.

    Raises:
        ValueError: as `check_writable`, or NaN in the marker.
    """
    with new_folder(folder, overwrite, kind) as draft:
        texts = {**files, kind.marker: json_text({**stamp(kind, files), **marker})}
        for name, text in texts.items():
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def json_text(value: Any) -> str:
    """Indented JSON in UTF-8; refuses NaN and infinity, which are not JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
