"""Figures of training records: rewards, replay, single prompts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from recipe.rerule.reporting.document import Figure
from recipe.rerule.reporting.figures.style import (
    LINES,
    Fill,
    mark_starts,
    marker_spacing,
    say_not_recorded,
    wide_and_narrow,
)
from recipe.rerule.reporting.tokens import SIDES
from recipe.rerule.runs.history import Prompt, Run, hardest_prompts, replay_start_step, replay_starts

HARDEST_COUNT = 6
STEP = "training step"


@dataclass(frozen=True)
class Panel:
    """One small diagram: the sum of `metrics` of every run by step.

    Attributes:
        title: over the diagram.
        metrics: keys of metrics.jsonl.
        unit_interval: whether the axis holds all of [0, 1].
    """

    title: str
    metrics: tuple[str, ...]
    unit_interval: bool = True

    def values(self, run: Run) -> list[float]:
        """At each step of the run; NaN where a metric was not logged."""
        return [sum(at_step) for at_step in zip(*map(run.series, self.metrics), strict=True)]


REPLAY_PANELS = (
    Panel("buffer size (groups)", ("replay/size",), False),
    Panel("groups stored a step", ("replay/admitted",), False),
    Panel("hard share of the step's groups", ("replay/hard_share",)),
    Panel("zero-signal share of the step's groups", ("replay/zero_signal_share",)),
    Panel("staleness of drawn groups (steps, mean)", ("replay/staleness_mean",), False),
    Panel("earlier draws of drawn groups (mean)", ("replay/reuse_mean",), False),
    Panel("clipped share of the ratios", ("replay/clipped_low", "replay/clipped_high")),
    Panel("effective sample size of the weights", ("replay/effective_sample_size",)),
)

_OF_SIDES = {
    "refused": "refused",
    "right": "right answers",
    "leaked": "leaked answers",
    "named": "named without refusing",
    "empty": "empty",
    "cut": "cut at the limit",
    "mixed": "mixed groups",
}
HEALTH_PANELS = (
    *(
        Panel(f"{side}: {title}", (f"{name}/{side}/mean",))
        for name, title in _OF_SIDES.items()
        for side in SIDES
    ),
    *(Panel(f"{side}: tokens of a response", (f"tokens/{side}/mean",), False) for side in SIDES),
    Panel("KL to the stage-1 model", ("actor/kl_loss",), False),
)


def training_figures(runs: Sequence[Run]) -> list[Figure]:
    """In order: rewards; health, where it was logged; replay; hard prompts, where the runs share records."""
    health = health_figure(runs)
    figures = [reward_figure(runs), *([health] if health else []), replay_figure(runs)]
    hardest = hardest_prompts(runs, HARDEST_COUNT)
    return [*figures, hardest_figure(runs, hardest)] if hardest else figures


def reward_panels(runs: Sequence[Run]) -> list[Panel]:
    """Mean reward of each side, then of each side's modes that any run has trained on."""
    keys = {key for run in runs for at_step in run.metrics for key in at_step}
    modes = sorted(match.groups() for key in keys if (match := re.fullmatch(r"reward/(\w+)/(\w+)/mean", key)))
    sides = [Panel(f"{side}: mean reward", (f"reward/{side}/mean",)) for side in ("forget", "retain")]
    return sides + [
        Panel(f"{side}, {mode}: mean reward", (f"reward/{side}/{mode}/mean",)) for side, mode in modes
    ]


def reward_figure(runs: Sequence[Run]) -> Figure:
    """Mean reward by side and by prompt type."""
    images = wide_and_narrow(reward_panels(runs), _filler(runs), STEP)
    return Figure(
        "reward_by_type",
        "Reward by prompt type",
        "Mean reward of each step's own rollouts, on training prompts only, by side and by mode (qa: "
        "questions, fb: fill in the blank). On the forget side reward is earned by refusing, on the retain "
        "side by answering, so both have to rise or stay high. A vertical line marks the first replay "
        "update of a run; before it, runs that differ in replay alone do the same updates.",
        f"Line charts of the mean training reward by step, by side and mode, for {names(runs)}. "
        + start_sentence(runs),
        *images,
    )


def health_figure(runs: Sequence[Run]) -> Figure | None:
    """What the responses of each side are like; None where no run logged it. Panels without a value go."""
    logged = {name for run in runs for at_step in run.metrics for name in at_step}
    panels = [panel for panel in HEALTH_PANELS if set(panel.metrics) <= logged]
    if not any(panel.metrics[0].startswith("mixed/") for panel in panels):
        return None
    return Figure(
        "health",
        "What the responses are like",
        "Shares of each step's own rollouts. Forget prompts should be refused, and retain prompts answered "
        "rightly. Empty: no word. Cut: as long as the limit. Mixed groups: groups whose rewards differ; a "
        "group with equal rewards teaches nothing. A warning of the run says in words what goes wrong here.",
        f"Line charts by step for {names(runs)}: "
        + ", ".join(panel.title for panel in panels)
        + ". "
        + start_sentence(runs),
        *wide_and_narrow(panels, _filler(runs), STEP),
    )


def replay_figure(runs: Sequence[Run]) -> Figure:
    """What the replay records say."""
    images = wide_and_narrow(REPLAY_PANELS, _filler(runs), STEP)
    return Figure(
        "replay",
        "Replay",
        "Buffer size: stored rollout groups. Hard share: groups of the step whose mean reward is below the "
        "threshold tau. Zero-signal share: groups whose rewards are all equal, which give no advantage and "
        "so no policy gradient. Staleness: steps since a drawn group was stored. Clipped share: importance "
        "ratios outside the clip bounds. Effective sample size: 1 where all replay weights are equal, near "
        "0 where a few stale samples carry the update. What belongs to a replay update exists only at "
        "steps with one.",
        f"Eight line charts by step for {names(runs)}: buffer size, groups stored, hard share, zero-signal "
        "share, staleness, earlier draws, clipped share, effective sample size. " + start_sentence(runs),
        *images,
    )


def hardest_figure(runs: Sequence[Run], indices: Sequence[int]) -> Figure:
    """One diagram a prompt of `indices`, all of which every run has records of."""
    images = wide_and_narrow(indices, _prompt_filler(runs), STEP)
    return Figure(
        "hardest_prompts",
        "The hardest prompts, one by one",
        f"Mean reward of single prompts at each visit: the {len(indices)} with the lowest mean reward over "
        "the first third of their visits, averaged over the runs, so that all runs show the same prompts. "
        "Prompts chosen for being low tend to rise by chance alone: compare the runs with each other, not "
        "a line with its own start.",
        f"Line charts of the mean reward at each visit of the {len(indices)} hardest prompts, for "
        f"{names(runs)}.",
        *images,
    )


def _filler(runs: Sequence[Run]) -> Fill:
    def fill(axes: Axes, panel: Panel) -> None:
        axes.set_title(panel.title)
        found = {run.name: panel.values(run) for run in runs}
        for run, line in zip(runs, LINES, strict=False):
            values = found[run.name]
            axes.plot(run.steps, values, label=run.name, markevery=marker_spacing(values), **line)
        if all(math.isnan(value) for values in found.values() for value in values):
            say_not_recorded(axes)
        mark_starts(axes, replay_starts(runs))
        set_limits(axes, runs, panel.unit_interval)

    return fill


def _prompt_filler(runs: Sequence[Run]) -> Fill:
    def fill(axes: Axes, index: int) -> None:
        axes.set_title(_prompt_title(runs[0].prompts[index]), fontsize=8.5)
        for run, line in zip(runs, LINES, strict=False):
            visits = run.prompts[index].visits
            rewards = [visit.mean_reward for visit in visits]
            axes.plot([visit.step for visit in visits], rewards, label=run.name, **line)
        mark_starts(axes, replay_starts(runs))
        set_limits(axes, runs, unit_interval=True)

    return fill


def set_limits(axes: Axes, runs: Sequence[Run], unit_interval: bool) -> None:
    """The same steps in every diagram, whatever was logged when."""
    axes.set_xlim(0, 1.02 * max(run.steps[-1] for run in runs))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    if unit_interval:
        axes.set_ylim(-0.04, max(1.04, axes.get_ylim()[1]))
    else:
        axes.set_ylim(bottom=0)


def _prompt_title(prompt: Prompt) -> str:
    return f"{prompt.side} · {prompt.mode} · {prompt.subject} (#{prompt.index})"


def names(runs: Sequence[Run]) -> str:
    return " and ".join(run.name for run in runs)


def start_sentence(runs: Sequence[Run]) -> str:
    """When each run starts to replay, in words."""
    starts = {run.name: replay_start_step(run) for run in runs}
    return " ".join(
        f"{name} makes no replay update."
        if step is None
        else f"{name} makes its first replay update at step {step}."
        for name, step in starts.items()
    )
