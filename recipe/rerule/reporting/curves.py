"""Figures of training: rewards, the health of responses, replay, validation, and single prompts by step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from data_prep.contract import SIDES
from recipe.rerule.reporting.document import Figure
from recipe.rerule.reporting.style import LINES, figure, mark_starts
from recipe.rerule.runs.history import Run, hardest_prompts, replay_start_step, replay_starts

HARDEST_COUNT = 6


class Panel(NamedTuple):
    """One small diagram.

    Attributes:
        title: over the diagram.
        curves: {run: values by step}; NaN where nothing was logged. A run without a curve has no line.
        unit_interval: whether the axis holds all of [0, 1].
    """

    title: str
    curves: Mapping[str, pd.Series[float]]
    unit_interval: bool = True


_REPLAY = {
    "buffer size (groups)": ["replay/size"],
    "groups stored a step": ["replay/admitted"],
    "hard share of the step's groups": ["replay/hard_share"],
    "zero-signal share of the step's groups": ["replay/zero_signal_share"],
    "staleness of drawn groups (steps, mean)": ["replay/staleness_mean"],
    "earlier draws of drawn groups (mean)": ["replay/reuse_mean"],
    "clipped share of the ratios": ["replay/clipped_low", "replay/clipped_high"],
    "effective sample size of the weights": ["replay/effective_sample_size"],
}
_OF_SIDES = {
    "refused": "refused",
    "right": "right answers",
    "leaked": "leaked answers",
    "named": "named without refusing",
    "empty": "empty",
    "cut": "cut at the limit",
    "mixed": "mixed groups",
    "tokens": "tokens of a response",
}
_COUNTS = re.compile(r"replay/(size|admitted|.*_mean)|tokens/.*|actor/kl_loss")
"""Metrics that are no shares of 1."""
_SCORES = {
    "(forget refused + retain right) / 2": "val-health/score",
    "forget: refused": "val-health/forget/refused",
    "retain: right answers": "val-health/retain/right",
}
"""The score by which a run's best checkpoint is known, and its two parts."""
_VALIDATION_REWARD = re.compile(r"val-(?:core|aux)/(?P<source>.+)/reward/mean@\d+")


def training_figures(runs: Sequence[Run]) -> Iterator[Figure]:
    """In order: rewards; health, where it was logged; replay; hard prompts, where the runs share records;
    validation rewards, of runs that validated at least twice. Raises ValueError for a bad record."""
    keys = {key for run in runs for key in run.metrics}
    modes = sorted(match.groups() for key in keys if (match := re.fullmatch(r"reward/(\w+)/(\w+)/mean", key)))
    rewards = {f"{side}: mean reward": [f"reward/{side}/mean"] for side in SIDES}
    rewards |= {f"{side}, {mode}: mean reward": [f"reward/{side}/{mode}/mean"] for side, mode in modes}
    yield step_lines(
        "reward_by_type",
        "Reward by prompt type",
        "Mean reward of each step's own rollouts, on training prompts only, by side and by mode (qa: "
        "questions, fb: fill in the blank). On the forget side reward is earned by refusing, on the retain "
        "side by answering, so both have to rise or stay high. A vertical line marks the first replay "
        "update of a run; before it, runs that differ in replay alone do the same updates.",
        logged_panels(runs, rewards),
        runs,
    )
    health = {
        f"{side}: {title}": [f"{name}/{side}/mean"] for name, title in _OF_SIDES.items() for side in SIDES
    }
    if any(f"mixed/{side}/mean" in keys for side in SIDES):
        health |= {"KL to the stage-1 model": ["actor/kl_loss"]}
        yield step_lines(
            "health",
            "What the responses are like",
            "Shares of each step's own rollouts. Forget prompts should be refused, and retain prompts "
            "answered rightly. Empty: no word. Cut: as long as the limit. Mixed groups: groups whose rewards "
            "differ; a group with equal rewards teaches nothing. A warning of the run says in words what "
            "goes wrong here.",
            logged_panels(runs, {title: names for title, names in health.items() if set(names) <= keys}),
            runs,
        )
    yield step_lines(
        "replay",
        "Replay",
        "Buffer size: stored rollout groups. Hard share: groups of the step whose mean reward is below the "
        "threshold tau. Zero-signal share: groups whose rewards are all equal, which give no advantage and "
        "so no policy gradient. Staleness: steps since a drawn group was stored. Clipped share: importance "
        "ratios outside the clip bounds. Effective sample size: 1 where all replay weights are equal, near "
        "0 where a few stale samples carry the update. What belongs to a replay update exists only at "
        "steps with one.",
        logged_panels(runs, _REPLAY),
        runs,
    )
    if hardest := hardest_prompts([run.groups for run in runs], HARDEST_COUNT):
        yield step_lines(
            "hardest_prompts",
            "The hardest prompts, one by one",
            f"Mean reward of single prompts at each visit: the {len(hardest)} with the lowest mean reward "
            "over the first third of their visits, averaged over the runs, so that all runs show the same "
            "prompts. Prompts chosen for being low tend to rise by chance alone: compare the runs with each "
            "other, not a line with its own start.",
            [
                Panel(
                    f"{prompt['side']} · {prompt['mode']} · {prompt['subject']} (#{index})",
                    {run.name: rewards_of(run.groups, index) for run in runs},
                )
                for index in hardest
                for prompt in [prompt_of(runs[0].groups, index)]
            ],
            runs,
        )
    if panels := validation_panels([run for run in runs if len(run.validations) > 1]):
        yield step_lines(
            "validation_reward",
            "Validation",
            "Answers to the validation prompts (data.val_files): the score by which the best checkpoint is "
            "known and its two parts, and the mean reward of each data source, forget and retain together. "
            "Points are the steps at which the run validated; step 0 is before training. A vertical line "
            "marks the first replay update of a run. The validation prompts of the benchmarks are drawn from "
            "the evaluation's probes: watch training by them, and select nothing.",
            panels,
            runs,
        )


def prompt_of(groups: pd.DataFrame, index: int) -> pd.Series[Any]:
    """The last row of a prompt among groups, for its labels."""
    return groups[groups["index"] == index].iloc[-1]


def rewards_of(groups: pd.DataFrame, index: int) -> pd.Series[float]:
    """A prompt's mean reward by step."""
    return groups[groups["index"] == index].set_index("step")["mean_reward"]


def step_lines(
    name: str, title: str, explanation: str, panels: Sequence[Panel], runs: Sequence[Run]
) -> Figure:
    """Line charts by step; a run has the same line in all of them, and all have the same steps."""
    starts, last = replay_starts(runs), max(run.steps[-1] for run in runs)

    def fill(axes: Axes, panel: Panel) -> None:
        axes.set_title(panel.title)
        for run, line in zip(runs, LINES, strict=False):
            if (curve := panel.curves.get(run.name)) is not None:
                # Markers on about twenty points, or on all where there are gaps: a lone point has no line. A
                # marker at step 0 lies on the axis, which would cut it.
                spacing = 1 if curve.isna().any() else max(1, len(curve) // 20)
                axes.plot(curve.index, curve, label=run.name, markevery=spacing, clip_on=False, **line)
        if all(curve.isna().all() for curve in panel.curves.values()):
            axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", color="#666666")
        mark_starts(axes, starts)
        axes.set_xlim(0, 1.02 * last)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
        if panel.unit_interval:
            axes.set_ylim(-0.04, max(1.04, axes.get_ylim()[1]))
        else:
            axes.set_ylim(bottom=0)

    begins = (
        f"{run.name} makes no replay update."
        if (start := replay_start_step(run)) is None
        else f"{run.name} makes its first replay update at step {start}."
        for run in runs
    )
    told = f"Line charts by step for {' and '.join(run.name for run in runs)}: "
    alt = f"{told}{', '.join(panel.title for panel in panels)}. {' '.join(begins)}"
    return figure(name, title, explanation, alt, panels, fill, "training step")


def logged_panels(runs: Sequence[Run], metrics: Mapping[str, Sequence[str]]) -> list[Panel]:
    """A panel for each title, with the sum of its metrics; NaN at a step where one of them is missing."""
    return [
        Panel(
            title,
            {run.name: run.logged(names).sum(axis=1, skipna=False) for run in runs},
            not any(map(_COUNTS.fullmatch, names)),
        )
        for title, names in metrics.items()
    ]


def validation_panels(runs: Sequence[Run]) -> list[Panel]:
    """What verl logged of validations: the score and its parts, and a panel for each data source."""
    logged = {run.name: run.validations for run in runs}
    keys = sorted({key for frame in logged.values() for key in frame})
    titles = {title: key for title, key in _SCORES.items() if key in keys}
    for key in keys:
        if match := _VALIDATION_REWARD.fullmatch(key):
            titles[f"all of {match['source']}: mean reward"] = key
    return [
        Panel(title, {name: frame[key].dropna() for name, frame in logged.items() if key in frame})
        for title, key in titles.items()
    ]
