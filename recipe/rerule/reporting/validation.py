"""Mean rewards of the validation prompts at the steps where a run validates (trainer.test_freq).

verl logs them by data source alone. By side and mode they come from the responses, where the run kept them in
<run>/records/validation/STEP.jsonl (trainer.validation_data_dir).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from data_prep.contract import read_rows
from recipe.rerule.io import is_finite
from recipe.rerule.reporting.evaluations import read_lines
from recipe.rerule.runs.history import Run, mean

Curve = dict[int, float]
"""Mean reward by step."""
PromptType = tuple[str, str]
"""Side and mode; the mode is "" for all of the side."""

_REWARD = re.compile(r"val-(?:core|aux)/(?P<source>.+)/reward/mean@\d+")


def curves_by_source(run: Run) -> dict[str, Curve]:
    """Over all validation prompts of each data_source, as verl logs it."""
    curves: defaultdict[str, Curve] = defaultdict(dict)
    for step, metrics in run.validations.items():
        for name, value in metrics.items():
            if match := _REWARD.fullmatch(name):
                curves[match["source"]][step] = value
    return dict(sorted(curves.items()))


def curves_by_type(run: Run) -> dict[PromptType, Curve]:
    """Over the validation prompts of each side, and of each of its modes; {} where no responses were kept.

    Sides alone where data.val_files cannot be read or no longer hold the rows that were asked.
    Raises ValueError for a bad record.
    """
    rows = _validation_rows(run)
    curves: defaultdict[PromptType, Curve] = defaultdict(dict)
    # Steps without metrics are another run's, which wrote into the same folder.
    for step in run.validations:
        for kind, rewards in _rewards(run, step, rows).items():
            curves[kind][step] = mean(rewards)
    return {kind: curves[kind] for kind in sorted(curves, key=sides_first)}


def sides_first(kind: PromptType) -> tuple[bool, PromptType]:
    """Sorts sides before their modes."""
    return kind[1] != "", kind


def _validation_rows(run: Run) -> list[dict[str, Any]]:
    """The rows of data.val_files; none where they cannot be read."""
    files = run.setting("data.val_files") or []
    try:
        return [row for file in ([files] if isinstance(files, str) else files) for row in read_rows(file)]
    except ValueError:
        return []


def _rewards(run: Run, step: int, rows: Sequence[dict[str, Any]]) -> dict[PromptType, list[float]]:
    """The rewards of one validation."""
    file = run.folder / "records" / "validation" / f"{step}.jsonl"
    lines = list(read_lines(file))
    rewards: defaultdict[PromptType, list[float]] = defaultdict(list)
    for number, (line, mode) in enumerate(zip(lines, _modes(lines, rows), strict=True), start=1):
        try:
            side, reward = str(line["gts"]["type"]), line["score"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{file}: line {number} is not a record of a validation") from error
        if not is_finite(reward):
            raise ValueError(f"{file}: line {number} is not a record of a validation")
        rewards[side, ""].append(reward)
        if mode:
            rewards[side, mode].append(reward)
    return rewards


def _modes(lines: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> list[str]:
    """The mode of each line, "" for all where the lines are not those of `rows`.

    verl asks the rows in their order, each as often as val_kwargs.n says, and keeps no mode.
    """
    times, rest = divmod(len(lines), len(rows)) if rows else (0, 0)
    asked = [row for row in rows for _ in range(times)]
    truths = [row["reward_model"]["ground_truth"] for row in asked]
    if rest or not times or [line.get("gts") for line in lines] != truths:
        return [""] * len(lines)
    return [str(row["extra_info"]["mode"]) for row in asked]
