"""The folder of a command's results (docs/attacks.md), and its table."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.output import json_text
from recipe.rerule.io import Kind, new_folder, stamp_folder

ATTACKED = Kind("rerule/attacks", "meta.json")
RESULTS, CURVES, SCORES, MODELS = "attacks.json", "curves.jsonl", "scores.jsonl", "models"
WITHOUT_CONTROL = (
    "E is not given: without a model that never knew the facts (--control), an attack that got an answer "
    "back cannot be told from one that taught it."
)
LEGEND = (
    "Scores are means over facts, from 0 to 1. before: without the attack; after: with it; N: the never-knew "
    "model after the same attack; E = after - N, with its 95 % interval over facts; p: of the paired test of "
    "E, for unlearned models corrected for the number of tests (Holm); share: E by the original model's E; "
    "refused, retain: share of refusals and recall of retained facts under the attack."
)
_WIDTH = 110
_HEADS = ("before", "after", "N", "E", "95 %", "p", "share", "refused", "retain", "facts")
_WIDTHS = (8, 7, 7, 8, 17, 8, 7, 9, 8, 7)


def write(
    out: Path,
    overwrite: bool,
    meta: Mapping[str, Any],
    files: Mapping[str, str],
    models: Mapping[str, Path],
) -> None:
    """Write the folder, all of it or nothing.

    Args:
        meta: what the marker says in addition to what makes the folder ours.
        models: changed models that are to stay, moved into it under these names.

    Raises:
        ValueError: as `check_writable`.
    """
    with new_folder(out, overwrite, ATTACKED) as draft:
        for name, text in files.items():
            (draft / name).write_text(text, encoding="utf-8")
        for name, folder in models.items():
            (draft / MODELS / name).parent.mkdir(parents=True, exist_ok=True)
            # Another file system where --cache is on one.
            shutil.move(folder, draft / MODELS / name)
        marker = {**stamp_folder(ATTACKED, draft), **meta}
        (draft / ATTACKED.marker).write_text(json_text(marker), encoding="utf-8")


def table(results: Mapping[str, Mapping[str, Mapping[str, Any]]], models: Sequence[str], control: str) -> str:
    """The rows of the models, model by model, then what the columns mean."""
    names = max(map(len, ["attack", *results])) + 1
    head = f"{'attack':{names}}" + _cells(_HEADS)
    lines = [head, "-" * len(head)]
    for model in models:
        lines.append(model)
        lines += [
            f"{attack:{names}}" + _cells(_shown(rows[model], rows.get(control)))
            for attack, rows in results.items()
        ]
    notes = LEGEND if any(control in rows for rows in results.values()) else f"{LEGEND} {WITHOUT_CONTROL}"
    return "\n".join([*lines, *textwrap.wrap(notes, _WIDTH)])


def _cells(texts: Sequence[str]) -> str:
    return "".join(text.rjust(width) for text, width in zip(texts, _WIDTHS, strict=True))


def _shown(row: Mapping[str, Any], control: Mapping[str, Any] | None) -> list[str]:
    interval = row["interval"]
    between = "–" if interval is None else f"[{interval[0]:+.2f}, {interval[1]:+.2f}]"
    return [
        _number(row["before"]),
        _number(row["after"]),
        _number(None if control is None else control["after"]),
        _number(row["excess"], "+.3f"),
        between,
        _number(row["p_holm"] if row["p_holm"] is not None else row["p_value"], ".4f"),
        _number(row["share"], ".2f"),
        _number(row["refusal"], ".2f"),
        _number(row["retain"], ".2f"),
        f"{row['facts']}",
    ]


def _number(value: float | None, spec: str = ".3f") -> str:
    return "–" if value is None else format(value, spec)
