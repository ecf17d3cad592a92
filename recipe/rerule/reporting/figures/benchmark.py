"""Figures of evaluations: forgetting against keeping, and metrics over the checkpoints of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from recipe.rerule.evaluation.registry import Column, find
from recipe.rerule.evaluation.table import all_columns
from recipe.rerule.reporting.document import ARROWS, Figure
from recipe.rerule.reporting.evaluations import Evaluation
from recipe.rerule.reporting.figures.style import LINES, Fill, mark_starts, wide_and_narrow
from recipe.rerule.runs.history import Run, replay_starts

_MARKERS = "osD^vPX*<>hp"


@dataclass(frozen=True)
class Point:
    """A row of the results in the plane; intervals None where it has none."""

    name: str
    x: float
    y: float
    x_interval: tuple[float, float] | None
    y_interval: tuple[float, float] | None
    anchor: bool


def scatter_figure(evaluation: Evaluation) -> Figure | None:
    """Models and constant answers by what they forget and keep; None where the benchmark has no such pair."""
    points, pair = scatter_points(evaluation), _pair(evaluation.benchmark)
    if not points or pair is None:
        return None
    x, y = pair
    images = wide_and_narrow([points], _scatter_filler(x, y), _axis_label(x))
    return Figure(
        f"forget_retain_{evaluation.benchmark}",
        "Forgetting against keeping",
        "Better is further to the left and further up. Crosses are 95 % intervals where there are any. "
        "Hollow marks are constant answers, no models: a model that comes to lie beside them may be doing "
        "no more than refusing.",
        f"Scatter plot of {_axis_label(y)} against {_axis_label(x)}: "
        + "; ".join(f"{p.name} at {p.x * x.scale:.3g}, {p.y * y.scale:.3g}" for p in points)
        + ".",
        *images,
    )


def scatter_points(evaluation: Evaluation) -> list[Point]:
    """One a row that has both metrics; of a run's checkpoints the last."""
    pair = _pair(evaluation.benchmark)
    if pair is None:
        return []
    x, y = (column.metric for column in pair)
    rows = [(name, row, False) for name, row in newest_rows(evaluation.results).items()]
    rows += [(name, row, True) for name, row in evaluation.anchors.items()]
    return [
        Point(
            name,
            row[x],
            row[y],
            evaluation.intervals.get(name, {}).get(x),
            evaluation.intervals.get(name, {}).get(y),
            anchor,
        )
        for name, row, anchor in rows
        if x in row and y in row
    ]


def _pair(benchmark: str) -> tuple[Column, Column] | None:
    """Columns of the metrics that are plotted; None where the benchmark names none."""
    declared = find(benchmark)
    if declared is None or declared.pair is None:
        return None
    columns = {column.metric: column for column in declared.columns}
    forgetting, keeping = declared.pair
    return columns[forgetting], columns[keeping]


def _axis_label(column: Column) -> str:
    unit = " (%)" if column.scale == 100 else ""
    return f"{column.group} {column.label}{unit} {ARROWS[column.aim]}"


def _scatter_filler(x: Column, y: Column) -> Fill:
    def fill(axes: Axes, points: Sequence[Point]) -> None:
        for place, point in enumerate(points):
            colour = "#666666" if point.anchor else LINES[place % len(LINES)]["color"]
            axes.errorbar(
                point.x * x.scale,
                point.y * y.scale,
                xerr=_error(point.x, point.x_interval, x.scale),
                yerr=_error(point.y, point.y_interval, y.scale),
                marker=_MARKERS[place % len(_MARKERS)],
                markerfacecolor="white" if point.anchor else colour,
                color=colour,
                linestyle="none",
                markersize=7,
                elinewidth=1,
                label=point.name,
            )
        axes.set_ylabel(_axis_label(y))
        axes.margins(0.08)

    return fill


def _error(value: float, interval: tuple[float, float] | None, scale: float) -> Any:
    """Distances down and up of shape (2, 1), as matplotlib takes them."""
    if interval is None:
        return None
    low, high = interval
    return [[max(0.0, value - low) * scale], [max(0.0, high - value) * scale]]


def checkpoints_of(results: Mapping[str, Any]) -> dict[str, dict[int, str]]:
    """{run: {step: row}} of the rows that `evaluate` names RUN@STEP, of runs with two or more."""
    found: dict[str, dict[int, str]] = {}
    for name in results:
        if match := re.fullmatch(r"(.+)@(\d+)", name):
            found.setdefault(match[1], {})[int(match[2])] = name
    return {run: dict(sorted(steps.items())) for run, steps in found.items() if len(steps) > 1}


def newest_rows(results: Mapping[str, Any]) -> dict[str, Any]:
    """The rows without the earlier checkpoints of a run that has several."""
    earlier = {row for steps in checkpoints_of(results).values() for row in list(steps.values())[:-1]}
    return {name: row for name, row in results.items() if name not in earlier}


def progress_figure(evaluation: Evaluation, runs: Sequence[Run]) -> Figure | None:
    """The benchmark's metrics over the checkpoints of each run; None where no run has several."""
    checkpoints = checkpoints_of(evaluation.results)
    if not checkpoints:
        return None
    rows = [evaluation.results[row] for steps in checkpoints.values() for row in steps.values()]
    columns = [
        column for column in all_columns(evaluation.benchmark) if any(column.metric in row for row in rows)
    ]
    if not columns:
        return None
    images = wide_and_narrow(columns, _progress_filler(evaluation, checkpoints, runs), "training step")
    return Figure(
        f"progress_{evaluation.benchmark}",
        "Metrics over training",
        "Each checkpoint evaluated on the same probes; bars are 95 % intervals where there are any. A "
        "vertical line marks the first replay update of a run.",
        "Line charts over training steps of "
        + ", ".join(f"{c.group} {c.label}" for c in columns)
        + " for "
        + " and ".join(checkpoints)
        + ".",
        *images,
    )


def _progress_filler(
    evaluation: Evaluation, checkpoints: Mapping[str, Mapping[int, str]], runs: Sequence[Run]
) -> Fill:
    starts = {run: start for run, start in replay_starts(runs).items() if run in checkpoints}

    def fill(axes: Axes, column: Column) -> None:
        axes.set_title(_axis_label(column))
        for (run, steps), line in zip(checkpoints.items(), LINES, strict=False):
            points = _progress_points(evaluation, steps, column)
            if points:
                axes.errorbar(**points, label=run, capsize=2, elinewidth=0.8, **line)
        mark_starts(axes, starts)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
        axes.set_xlim(left=0)

    return fill


def _progress_points(evaluation: Evaluation, steps: Mapping[int, str], column: Column) -> dict[str, Any]:
    """x, y and, where all have an interval, yerr, as `errorbar` takes them; {} without numbers."""
    shown = {step: row for step, row in steps.items() if column.metric in evaluation.results[row]}
    if not shown:
        return {}
    values = [evaluation.results[row][column.metric] for row in shown.values()]
    intervals = [evaluation.intervals.get(row, {}).get(column.metric) for row in shown.values()]
    points: dict[str, Any] = {"x": list(shown), "y": [value * column.scale for value in values]}
    if all(interval is not None for interval in intervals):
        errors = [_error(v, i, column.scale) for v, i in zip(values, intervals, strict=True)]
        points["yerr"] = [[error[0][0] for error in errors], [error[1][0] for error in errors]]
    return points
