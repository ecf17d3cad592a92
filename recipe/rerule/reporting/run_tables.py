"""Tables of training runs: storage, tau, hard share, cost and tokens, beside the published ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipe.rerule.evaluation.registry import Column, Published, benchmarks, published
from recipe.rerule.evaluation.table import columns_of, legend
from recipe.rerule.replay.buffer import is_hard
from recipe.rerule.reporting.document import DASH, Cell, Heading, Row, Table, number_cell
from recipe.rerule.reporting.evaluations import Evaluation
from recipe.rerule.reporting.figures.benchmark import checkpoints_of
from recipe.rerule.reporting.result_tables import (
    heading,
    published_name,
    published_notes,
    published_rows,
    value_cells,
)
from recipe.rerule.reporting.tokens import SIDES, TokenUse
from recipe.rerule.runs.history import Run, mean, replay_start_step

_REPLAY_PARTS = tuple(f"replay/seconds/{part}" for part in ("offer", "draw", "collate", "update", "record"))
MARK = 0.6
"""The paper's tau in most of its runs: what "hard" means of a run that has no fixed one."""
_NOT_TRAINING = ("timing_s/testing", "timing_s/save_checkpoint")


def storage_table(runs: Sequence[Run], evaluation: Evaluation) -> Table | None:
    """Random against hard storage; None where no two of the runs differ in it and nothing is published."""
    chosen = [run for run in runs if run.config]
    figures = published(evaluation.benchmark).storage
    if not figures and len({run.storage for run in chosen} - {"none"}) < 2:
        return None
    return _settings_table(
        "storage",
        "Random against hard storage",
        chosen,
        evaluation,
        figures,
        "What replay stores: hard stores groups whose mean reward is below tau, random as many groups of "
        "the step whichever they are, none is plain RULE. Storage rules compare fairly only where they "
        "store about as many groups.",
    )


def tau_table(runs: Sequence[Run], evaluation: Evaluation) -> Table | None:
    """Several thresholds; None where fewer than two of the runs differ in it and nothing is published.

    A run that has none (`_threshold`) has no place in the order and is left out.
    """
    thresholds = {run.name: _threshold(run) for run in runs if run.storage == "hard"}
    known = {name: tau for name, tau in thresholds.items() if tau is not None}
    chosen = sorted((run for run in runs if run.name in known), key=lambda run: known[run.name])
    figures = published(evaluation.benchmark).tau
    if not figures and len(set(known.values())) < 2:
        return None
    return _settings_table(
        "tau",
        "The threshold tau",
        chosen,
        evaluation,
        figures,
        "Runs with hard storage by tau, the group mean reward below which a group is stored.",
    )


def _settings_table(
    name: str,
    title: str,
    runs: Sequence[Run],
    evaluation: Evaluation,
    figures: Sequence[Published],
    explanation: str,
) -> Table:
    """Runs by their replay settings, with the results of the model that each of them made."""
    columns = columns_of(evaluation.benchmark, evaluation.results)
    rows = [Row(run.name, (*_setting_cells(run), *_result_cells(run, evaluation, columns))) for run in runs]
    settings = (Heading("storage"), Heading("tau"), Heading("groups stored"))
    blank = (DASH,) * len(settings)
    beside = [Row(row.name, blank + row.cells, row.kind) for row in published_rows(figures, columns)]
    caption = (explanation, legend(evaluation.benchmark, evaluation.convention), published_notes(figures))
    return Table(
        f"{name}_{evaluation.benchmark}",
        title,
        "run",
        (*settings, *map(heading, columns)),
        (*rows, *beside),
        " ".join(text for text in caption if text),
    )


def _setting_cells(run: Run) -> tuple[Cell, ...]:
    stored = run.series("replay/admitted")
    if run.storage == "none":
        return Cell("none"), DASH, DASH
    return Cell(run.storage), number_cell(_threshold(run), "g"), number_cell(_sum(stored), ".0f")


def _threshold(run: Run) -> float | None:
    """replay.threshold; None where the configuration has no number for it, or another rule replaces it."""
    threshold, rule = run.setting("replay.threshold"), run.setting("replay.threshold_rule")
    return threshold if isinstance(threshold, int | float) and rule in (None, "fixed") else None


def _result_cells(run: Run, evaluation: Evaluation, columns: Sequence[Column]) -> tuple[Cell, ...]:
    return value_cells(evaluation.results.get(model_of(run, evaluation) or "", {}), columns)


def model_of(run: Run, evaluation: Evaluation) -> str | None:
    """The model that the run made: the last one that lies in its folder, else the last of its name."""
    folder = run.folder.resolve()
    inside = [
        name
        for name, model in evaluation.models.items()
        if "path" in model and Path(model["path"]).resolve().is_relative_to(folder)
    ]
    if inside:
        return max(inside, key=lambda name: evaluation.models[name].get("global_step") or 0)
    checkpoints = checkpoints_of(evaluation.results).get(run.name, {})
    named = [run.name, *reversed(checkpoints.values())]
    return next((name for name in named if name in evaluation.results), None)


def hard_share_table(runs: Sequence[Run]) -> Table:
    """How many groups are hard in the first and the last third of each run."""
    figures = [row for benchmark in benchmarks().values() for row in benchmark.published.hard_share]
    rows = [Row(run.name, _hard_share_cells(run)) for run in runs]
    beside = [
        Row(
            published_name(row),
            (number_cell(row.values["tau"], ".2g"), number_cell(row.values["share"], ".3f"), *(DASH,) * 5),
            "published",
        )
        for row in figures
    ]
    thirds = ("first third of the steps", "last third")
    return Table(
        "hard_share",
        "Share of hard groups",
        "run",
        (
            Heading("tau"),
            *(Heading(label, third) for third in thirds for label in ("all", "forget", "retain")),
        ),
        (*rows, *beside),
        "Share of a step's rollout groups whose mean reward is below tau, averaged over steps. A run without "
        f"a fixed tau is counted at {MARK:g}. The published figures say early on, without the number of "
        "steps. " + published_notes(figures),
    )


def _hard_share_cells(run: Run) -> tuple[Cell, ...]:
    """Tau, then the share of all, forget and retain groups in the first and in the last third."""
    fixed = _threshold(run)
    threshold = MARK if fixed is None else fixed
    third = -(-len(run.steps) // 3)
    shares = [
        hard_share(run, threshold, steps, sides)
        for steps in (run.steps[:third], run.steps[len(run.steps) - third :])
        for sides in (SIDES, *((side,) for side in SIDES))
    ]
    return number_cell(threshold, ".2g"), *(number_cell(share, ".3f") for share in shares)


def hard_share(run: Run, threshold: float, steps: Sequence[int], sides: Sequence[str]) -> float | None:
    """Share of groups of `sides` with a mean reward below `threshold`; mean over `steps`, None without."""
    hard: dict[int, list[float]] = {step: [] for step in steps}
    for prompt in run.prompts.values():
        for visit in prompt.visits if prompt.side in sides else ():
            if visit.step in hard:
                hard[visit.step].append(is_hard(visit.mean_reward, threshold))
    return _mean([mean(step) for step in hard.values() if step])


def cost_table(runs: Sequence[Run]) -> Table:
    """Seconds a training step with and without replay, and replay's share of them."""
    headings = (
        Heading("steps"),
        Heading("hours"),
        Heading("before", "seconds a step"),
        Heading("from replay on", "seconds a step"),
        Heading("replay", "seconds a step"),
        Heading("of a step", "replay's share"),
        Heading("of the run", "replay's share"),
        Heading("added"),
    )
    first_start = min(filter(None, map(replay_start_step, runs)), default=None)
    rows = [Row(run.name, _cost_cells(run, replay_start_step(run) or first_start)) for run in runs]
    figures = [row for benchmark in benchmarks().values() for row in benchmark.published.cost]
    beside = [
        Row(
            published_name(row),
            (
                DASH,
                number_cell(row.values["hours"], ".1f"),
                *(DASH,) * 5,
                number_cell(row.values.get("added"), "+.1%"),
            ),
            "published",
        )
        for row in figures
    ]
    return Table(
        "cost",
        "Cost of replay",
        "run",
        headings,
        (*rows, *beside),
        f"{_COST_CAPTION} {published_notes(figures)}",
    )


_COST_CAPTION = (
    "Wall time. Hours: all steps as recorded, validation and checkpoints included. Seconds a step: means "
    "without validation, without writing checkpoints, and without the first step, which warms up; before "
    "the first replay update and from it on, for a run without replay before and from the first replay "
    "update of the others. Replay: storing, drawing, collating, the replay updates and their record, at "
    "steps with an update; its share of such a step and of the whole run; added: what it adds to the rest "
    "of the run."
)


@dataclass(frozen=True)
class _Step:
    """A step's number, its seconds, those of them that replay took, and its replay updates."""

    number: int
    seconds: float
    replay: float
    updates: float


def _cost_cells(run: Run, start: int | None) -> tuple[Cell, ...]:
    """A run's cells in the cost table; `start` is the step that divides it."""
    steps, divide = _timed_steps(run), math.inf if start is None else start
    total = _sum(run.series("timing_s/step"))
    return (
        number_cell(float(len(run.steps)), ".0f"),
        number_cell(total / 3600 if total else None, ".2f"),
        number_cell(_mean([step.seconds for step in steps if step.number < divide]), ".2f"),
        number_cell(_mean([step.seconds for step in steps if step.number >= divide]), ".2f"),
        *_replay_cells(steps),
    )


def _timed_steps(run: Run) -> list[_Step]:
    """The steps whose time was logged, without the first, which warms up."""
    columns = (run.steps, step_seconds(run), replay_seconds(run), run.series("replay/updates"))
    steps = [_Step(*values) for values in zip(*columns, strict=True)]
    return [step for step in steps[1:] if not math.isnan(step.seconds)]


def _replay_cells(steps: Sequence[_Step]) -> tuple[Cell, ...]:
    """Replay's seconds a step with an update, its share of that step and of the run, and what it adds."""
    replayed = [step for step in steps if step.updates > 0]
    if not replayed:
        return (DASH,) * 4
    of_replayed = [step.replay for step in replayed]
    spent, others = [step.replay for step in steps], [step.seconds - step.replay for step in steps]
    return (
        number_cell(_mean(of_replayed), ".2f"),
        number_cell(_ratio(of_replayed, [step.seconds for step in replayed]), ".1%"),
        number_cell(_ratio(spent, [step.seconds for step in steps]), ".1%"),
        number_cell(_ratio(spent, others), "+.1%"),
    )


def step_seconds(run: Run) -> list[float]:
    """Wall time of each step without validation and checkpoints; NaN where it was not logged."""
    others = zip(*map(run.series, _NOT_TRAINING), strict=True)
    return [
        whole - sum(part for part in parts if not math.isnan(part))
        for whole, parts in zip(run.series("timing_s/step"), others, strict=True)
    ]


def replay_seconds(run: Run) -> list[float]:
    """What replay took of each step: storing, drawing, collating, the updates, the record."""
    parts = zip(*map(run.series, _REPLAY_PARTS), strict=True)
    return [sum(part for part in at_step if not math.isnan(part)) for at_step in parts]


def tokens_table(use: Mapping[str, Mapping[str, TokenUse]], runs: Sequence[Run]) -> Table:
    """# Tokens: the share of forget and retain tokens used. `use` by run and side."""
    rows = [
        Row(
            run.name,
            (
                *(cell for side in SIDES for cell in _use_cells(use[run.name][side])),
                *(number_cell(trained_tokens(run, side), ",.0f") for side in SIDES),
                number_cell(_sum(run.series("replay/drawn_tokens")), ",.0f"),
            ),
        )
        for run in runs
    ]
    return Table(
        "tokens",
        "# Tokens",
        "run",
        (
            *(Heading(label, side) for side in SIDES for label in ("tokens", "share")),
            *(Heading(side, "trained on") for side in SIDES),
            Heading("replayed", "trained on"),
        ),
        tuple(rows),
        "Tokens of the training rows that the run drew on at least once (prompt and first gold answer, "
        "without chat template, under the run's own tokenizer), and their share of all rows of that side "
        "in train.parquet. Trained on: tokens of prompts and sampled responses in all on-policy updates, "
        "by side, and in replay updates.",
    )


def _use_cells(use: TokenUse) -> tuple[Cell, Cell]:
    return number_cell(float(use.used), ",.0f"), number_cell(use.share, ".1%")


def trained_tokens(run: Run, side: str) -> float | None:
    """Tokens of prompts and responses in a side's rollout groups; None where the run did not record them."""
    visits = [visit for prompt in run.prompts.values() if prompt.side == side for visit in prompt.visits]
    tokens = [visit.tokens for visit in visits if visit.tokens is not None]
    return float(sum(tokens)) if visits and len(tokens) == len(visits) else None


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _mean(values: Sequence[float]) -> float | None:
    known = _known(values)
    return sum(known) / len(known) if known else None


def _sum(values: Sequence[float]) -> float | None:
    known = _known(values)
    return sum(known) if known else None


def _ratio(parts: Sequence[float], wholes: Sequence[float]) -> float | None:
    return sum(parts) / sum(wholes) if sum(wholes) > 0 else None
