"""The figure of validation rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from recipe.rerule.reporting.document import Figure
from recipe.rerule.reporting.figures.style import LINES, Fill, mark_starts, wide_and_narrow
from recipe.rerule.reporting.figures.training import STEP, names, set_limits, start_sentence
from recipe.rerule.reporting.validation import Curve, curves_by_source, curves_by_type, sides_first
from recipe.rerule.runs.history import Run, replay_starts


@dataclass(frozen=True)
class ValidationPanel:
    """One diagram: its title, and the mean reward by step of each run that has it."""

    title: str
    curves: dict[str, Curve]


def validation_figure(runs: Sequence[Run]) -> Figure | None:
    """Mean validation reward of the runs that validated at least twice; None where there is none."""
    shown = [run for run in runs if len(run.validations) > 1]
    by_type, by_source = type_panels(shown), source_panels(shown)
    if not by_type and not by_source:
        return None
    images = wide_and_narrow([*score_panels(shown), *by_type, *by_source], _filler(runs), STEP)
    return Figure(
        "validation_reward",
        "Validation reward by prompt type" if by_type else "Validation reward",
        _explanation(bool(by_type)),
        f"Line charts of the mean validation reward by step for {names(shown)}. {start_sentence(shown)}",
        *images,
    )


def score_panels(runs: Sequence[Run]) -> list[ValidationPanel]:
    """The score by which a run's best checkpoint is known, and its two parts; none where no run has it."""
    found = {
        "(forget refused + retain right) / 2": "score",
        "forget: refused": "forget/refused",
        "retain: right answers": "retain/right",
    }
    panels = []
    for title, name in found.items():
        key = f"val-health/{name}"
        curves = {
            run.name: {step: data[key] for step, data in run.validations.items() if key in data}
            for run in runs
        }
        panels += [ValidationPanel(title, curves)] if any(curves.values()) else []
    return panels


def type_panels(runs: Sequence[Run]) -> list[ValidationPanel]:
    """A panel for each side, then for each of its modes, of the runs that kept the responses."""
    found = {run.name: curves_by_type(run) for run in runs}
    kinds = {kind for curves in found.values() for kind in curves}
    return [
        _panel(", ".join(filter(None, kind)), {name: curves.get(kind) for name, curves in found.items()})
        for kind in sorted(kinds, key=sides_first)
    ]


def source_panels(runs: Sequence[Run]) -> list[ValidationPanel]:
    """A panel for each data source."""
    found = {run.name: curves_by_source(run) for run in runs}
    sources = {source for curves in found.values() for source in curves}
    return [
        _panel(f"all of {source}", {name: curves.get(source) for name, curves in found.items()})
        for source in sorted(sources)
    ]


def _panel(of: str, curves: Mapping[str, Curve | None]) -> ValidationPanel:
    return ValidationPanel(
        f"{of}: mean reward", {name: curve for name, curve in curves.items() if curve is not None}
    )


def _explanation(by_type: bool) -> str:
    which = (
        "by side and mode, of runs that kept the responses (trainer.validation_data_dir), and over all "
        "prompts of a data source, as verl logs it"
        if by_type
        else "over all prompts of a data source, forget and retain together: verl logs no other mean, and "
        "no run kept the responses, which tell sides and modes apart (trainer.validation_data_dir)"
    )
    return (
        f"Mean reward of the answers to the validation prompts (data.val_files) {which}. Points are the "
        "steps at which the run validated; step 0 is before training. A vertical line marks the first replay "
        "update of a run. The validation prompts of the benchmarks are drawn from the evaluation's probes: "
        "watch training by them, and select nothing."
    )


def _filler(runs: Sequence[Run]) -> Fill:
    def fill(axes: Axes, panel: ValidationPanel) -> None:
        axes.set_title(panel.title)
        # Of all runs, so that a run looks the same in every figure.
        for run, line in zip(runs, LINES, strict=False):
            if curve := panel.curves.get(run.name):
                # Step 0 lies on the axis, which would cut its marker.
                axes.plot(list(curve), list(curve.values()), label=run.name, clip_on=False, **line)
        mark_starts(axes, replay_starts(runs))
        set_limits(axes, runs, unit_interval=True)

    return fill
