"""Figures that the paper (ReRULE) has or speaks of, each where the runs have what it needs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from recipe.rerule.evaluation.registry import Column
from recipe.rerule.evaluation.table import columns_of
from recipe.rerule.reporting.curves import HARDEST_COUNT, Panel, prompt_of, rewards_of, step_lines
from recipe.rerule.reporting.document import Figure, Part
from recipe.rerule.reporting.evaluations import Benchmark, Evaluation
from recipe.rerule.reporting.results import ENDS, axis_label
from recipe.rerule.reporting.style import LINES, error_bar, figure
from recipe.rerule.reporting.training import OF_SIDES, hard_shares, model_of, thirds
from recipe.rerule.runs.history import Run, hardest_prompts, replay_start_step

_TAUS = [step / 20 for step in range(21)]
_TITLE_LETTERS = 40
"""Of a line of a panel's title."""


def paper_figures(benchmarks: Sequence[Benchmark], runs: Sequence[Run]) -> list[Part]:
    """In order: single validation prompts, metrics against replay's start for each benchmark, and the share
    of hard groups by tau; last a line on those that are missing."""
    made = [
        validation_prompts_figure(runs),
        *(start_figure(benchmark.mean, benchmark.title, runs) for benchmark in benchmarks),
        hard_share_figure(runs),
    ]
    missing = [one for one in made if isinstance(one, str)]
    figures: list[Part] = [one for one in made if isinstance(one, Figure)]
    return [*figures, f"Figures that are not drawn: {'; '.join(missing)}."] if missing else figures


def validation_prompts_figure(runs: Sequence[Run]) -> Figure | str:
    """Rewards of the hardest validation prompts over steps, of runs that validated at least twice.

    Each function of this module returns the title and the reason where its figure cannot be drawn.
    """
    title = "The hardest validation prompts, one by one"
    shown = [run for run in runs if run.validated["index"].duplicated().any()]
    if not shown:
        missing = "rewards of two validations in records/validation.jsonl, which trainer.test_freq makes"
        return f"{title} (no run has {missing})"
    hardest = hardest_prompts([run.validated for run in shown], HARDEST_COUNT)
    if not hardest:
        return f"{title} (the runs have no validation prompt in common)"
    panels = []
    for index in hardest:
        prompt = prompt_of(shown[0].validated, index)
        lines = textwrap.wrap(
            f"{prompt['side']} #{index}: {prompt['query'] or prompt['subject']}",
            _TITLE_LETTERS,
            max_lines=2,
            placeholder=" ...",
        )
        rewards = {run.name: rewards_of(run.validated, index) for run in shown}
        # Means over about a sixth of the validations, around each one; of fewer than 12, the rewards.
        curves = {
            name: one.rolling(2 * (len(one) // 12) + 1, center=True, min_periods=1).mean()
            for name, one in rewards.items()
        }
        panels.append(Panel("\n".join(lines), curves))
    return step_lines(
        "validation_prompts",
        title,
        f"Reward of single validation prompts (data.val_files) by step: the {len(hardest)} with the lowest "
        "mean reward over the first third of the validations, averaged over the runs, so that all runs show "
        "the same prompts. Each point is a mean over the validations around it, about a sixth of all. The "
        "number is the prompt's index in the data. Prompts chosen for being low tend to rise by chance "
        "alone: compare the runs with each other, not a line with its own start.",
        panels,
        runs,
    )


def start_figure(evaluation: Evaluation, of: str, runs: Sequence[Run]) -> Figure | str:
    """Metrics of the models that runs made, by the step of their first replay update.

    `of`: the benchmark's title.
    """
    title = f"{of}: metrics by the start of replay"
    models = {run.name: model for run in runs if (model := model_of(run, evaluation)) is not None}
    starts = {run.name: replay_start_step(run) for run in runs if run.name in models}
    warmups = {run.setting("replay.warmup_steps") for run in runs if starts.get(run.name) is not None}
    if len(warmups) < 2:
        return f"{title} (it needs two runs with replay and results whose replay.warmup_steps differ)"
    numbers = {name: rows.set_index("metric")[ENDS] for name, rows in evaluation.numbers.groupby("name")}

    def fill(axes: Axes, column: Column) -> None:
        axes.set_title(axis_label(column))
        for run, line in zip(runs, LINES, strict=False):
            if run.name not in models or column.metric not in numbers[models[run.name]].index:
                continue
            value, low, high = numbers[models[run.name]].loc[column.metric] * column.scale
            start = starts[run.name]
            if start is None:
                axes.axhline(value, label=f"{run.name} (no replay)", **{**line, "marker": ""})
            else:
                axes.errorbar(
                    start, value, yerr=error_bar(value, low, high), label=run.name, capsize=2,
                    **{**line, "linestyle": "none", "markersize": 6},
                )  # fmt: skip
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
        axes.margins(0.1)

    return figure(
        f"replay_start_{evaluation.benchmark}",
        title,
        "Each mark is the model of one run, at the step of the run's first replay update; bars are 95 % "
        "intervals where there are any. A horizontal line is a run without replay. Marks compare the start "
        "of replay alone only if the runs differ in nothing but replay.warmup_steps.",
        f"Metrics of {evaluation.benchmark} against the first replay update of {' and '.join(models)}.",
        columns_of(evaluation.benchmark, {name: evaluation.results[name] for name in models.values()}),
        fill,
        "step of the first replay update",
    )


def hard_share_figure(runs: Sequence[Run]) -> Figure | str:
    """Share of rollout groups that are hard, by the tau that says so, of runs with records of prompts."""
    title = "Share of hard groups, by tau"
    recorded = [run for run in runs if len(run.groups)]
    if not recorded:
        return f"{title} (no run has records/prompts.jsonl)"
    names = " and ".join(run.name for run in recorded)
    panels = [
        (
            f"{label} groups, {third}",
            {run.name: hard_shares(run, _TAUS, thirds(run)[third], sides) for run in recorded},
        )
        for label, sides in OF_SIDES.items()
        for third in thirds(runs[0])
    ]

    def fill(axes: Axes, panel: tuple[str, Mapping[str, pd.Series[float]]]) -> None:
        axes.set_title(panel[0])
        for run, line in zip(runs, LINES, strict=False):
            if run.name in panel[1]:
                # Steps to the left: a group with a mean reward of 0.5 is hard for every tau above 0.5.
                axes.plot(
                    _TAUS, panel[1][run.name], label=run.name, drawstyle="steps-pre", markevery=4, **line
                )
        axes.set_ylabel("hard share")
        axes.set_ylim(-0.04, 1.04)

    return figure(
        "hard_share_by_tau",
        title,
        "Share of a step's rollout groups whose mean reward is below tau, averaged over steps: what replay "
        "stores with a fixed threshold tau. It is counted for taus in steps of 0.05, and rises at the mean "
        "rewards that groups have. A curve that is lower in the last third than in the first says that fewer "
        "prompts are hard.",
        f"Line charts of the share of hard groups against tau for {names}.",
        panels,
        fill,
        "tau",
    )
