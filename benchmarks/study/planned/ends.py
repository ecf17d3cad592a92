"""Tables of the runs that count: where they end, the way there, and what all runs took."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev

from benchmarks.study.planned.choice import chosen_rate, counted, one_model, ranked_ideas
from benchmarks.study.planned.plan import (
    CONTROLS,
    COUNTED,
    COUNTED_BASES,
    COUNTED_SEEDS,
    EXTRAS,
    IDEAS,
    WORLDS,
)
from benchmarks.study.planned.runs import PlannedRun
from benchmarks.study.planned.shares import Pairs, mean_score_at, mean_share
from benchmarks.study.tables import bare, code
from recipe.rerule.reporting.document import Cell, Heading, Row, Table, number_cell

Runs = Sequence[PlannedRun]
Start = tuple[int, int]
"""Base and run seed."""
ALL_STARTS = len(COUNTED_BASES) * len(COUNTED_SEEDS)
SECTIONS = {"forget": "forget", "retain": "retain", "unseen": "retain_unseen"}
COSTS = {"generated": "generated", "compute": "compute", "seconds": "cpu_seconds"}
CURVES_OVER = ("generated", "seconds")
"""The costs that curves are shown against."""
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.25)
"""Of what RULE's run has spent in all, at which curves are read."""
HOUR = 3600.0


def by_start(runs: Runs, world: str, arm: str) -> dict[Start, PlannedRun]:
    """Runs of an arm that count, at the rate of its answer."""
    rate = _rate(runs, world, arm)
    return {
        (run.base, run.seed): run
        for run in counted(runs)
        if (run.world, run.arm, run.rate) == (world, arm, rate)
    }


def _rate(runs: Runs, world: str, arm: str) -> float | None:
    return chosen_rate(runs, world, arm) if arm in COUNTED else ranked_ideas(runs)[0][1]


def _all_by_start(runs: Runs) -> dict[tuple[str, str], dict[Start, PlannedRun]]:
    """By world and arm, once all runs that count are done; empty before, so that nothing is compared."""
    confirmed = [ranked[0][0] for ranked in [ranked_ideas(runs)] if ranked]
    found = {(world, arm): by_start(runs, world, arm) for world in WORLDS for arm in (*COUNTED, *confirmed)}
    return found if confirmed and all(len(own) == ALL_STARTS for own in found.values()) else {}


def ends(runs: Runs) -> Table:
    """Scores at the end and costs, as means over the models that count, with the deviation over them."""
    found = _all_by_start(runs)
    rows = [
        Row(f"{code(arm)}, {world}", _end_cells(own, found[world, "rule"]))
        for (world, arm), own in found.items()
    ]
    heads = ("mean score", *SECTIONS, *(f"{name}, share of RULE's" for name in COSTS))
    return bare([Heading(head) for head in heads], rows, lead="arm")


def _end_cells(own: Mapping[Start, PlannedRun], rule: Mapping[Start, PlannedRun]) -> tuple[Cell, ...]:
    of_models = list(_of_models(own).values())
    pairs = with_rule(own, rule)
    return (
        Cell(f"{mean(of_models):.3f} ({stdev(of_models):.3f})", mean(of_models)),
        *(
            number_cell(mean(run.final[f"{name}/recall"] for run in own.values()), ".3f")
            for name in SECTIONS.values()
        ),
        *(number_cell(mean_share(pairs, cost), ".2f") for cost in COSTS.values()),
    )


def with_rule(own: Mapping[Start, PlannedRun], rule: Mapping[Start, PlannedRun]) -> Pairs:
    """Each run of an arm with RULE's run of the same start."""
    return [(run, rule[start]) for start, run in own.items()]


def by_model(runs: Runs) -> Table:
    """Mean score of each arm on each model that counts, as a mean over its run seeds."""
    found = _all_by_start(runs)
    arms = dict.fromkeys(arm for _, arm in found)
    rows = [
        Row(
            f"{world} {model}",
            tuple(number_cell(_of_models(found[world, arm])[model], ".3f") for arm in arms),
        )
        for world in WORLDS
        for model in (COUNTED_BASES if found else ())
    ]
    return bare([Heading(code(arm)) for arm in arms], rows, lead="world and base")


def _of_models(own: Mapping[Start, PlannedRun]) -> dict[int, float]:
    return {
        model: mean(run.score for (base, _), run in own.items() if base == model) for model in COUNTED_BASES
    }


def curve_cells(pairs: Pairs, cost: str, parts: Sequence[float]) -> tuple[Cell, ...]:
    """Mean scores at parts of what RULE's runs have cost."""
    return tuple(number_cell(mean_score_at(pairs, cost, part), ".3f") for part in parts)


def curves(world: str, cost: str) -> Callable[[Runs], Table]:
    """Mean score over the models that count, at shares of what RULE's run of the same start has cost."""

    def table(runs: Runs) -> Table:
        found = _all_by_start(runs)
        rows = [
            Row(code(arm), curve_cells(with_rule(own, found[world, "rule"]), cost, SHARES))
            for (of_world, arm), own in found.items()
            if of_world == world
        ]
        return bare([Heading(f"{part:g}") for part in SHARES], rows, lead="arm")

    return table


def hours(runs: Runs) -> Table:
    """Hours of the processor in training steps, by world and what the runs were for."""
    kinds = {
        "learning rates": (COUNTED, False),
        "ideas and their controls": ({**IDEAS, **CONTROLS}, False),
        "other ways to spend compute": (EXTRAS, False),
        "question 1": (COUNTED, True),
        "question 2": (IDEAS, True),
    }
    rows = [
        Row(name, tuple(cell for world in WORLDS for cell in _hours_cells(_used(runs, world, arms, counts))))
        for name, (arms, counts) in kinds.items()
    ]
    heads = [Heading(f"{head}, {world}") for world in WORLDS for head in ("runs", "hours")]
    return bare(heads, rows, lead="runs for")


def _used(runs: Runs, world: str, arms: Mapping[str, object], counts: bool) -> list[PlannedRun]:
    return [
        run
        for run in one_model(runs)
        if run.world == world and run.arm in arms and (run.base in COUNTED_BASES) == counts
    ]


def _hours_cells(own: Runs) -> tuple[Cell, Cell]:
    spent = sum(run.final["cpu_seconds"] for run in own) / HOUR
    return number_cell(float(len(own)), ".0f"), number_cell(spent, ".2f")


RESULT_TABLES: dict[str, Callable[[Runs], Table]] = {
    "ends": ends,
    "models that count": by_model,
    **{f"{world} by {name}": curves(world, COSTS[name]) for world in WORLDS for name in CURVES_OVER},
    "hours": hours,
}
