"""What the runs on the tuning models choose: a learning rate for each arm, and the idea to confirm."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from benchmarks.study.planned.plan import COUNTED_BASES, IDEAS, RATES, TUNING_BASES
from benchmarks.study.planned.runs import PlannedRun

Runs = Sequence[PlannedRun]
CONFIRMED_IN = "many"
"""The world whose runs choose the idea."""


def one_model(runs: Runs) -> list[PlannedRun]:
    """Of each base the runs from the stage-1 model with the most; the first by name among equals."""
    by_base: dict[tuple[str, int], dict[str, list[PlannedRun]]] = {}
    for run in runs:
        by_base.setdefault((run.world, run.base), {}).setdefault(run.model, []).append(run)
    chosen = (min(models.items(), key=lambda item: (-len(item[1]), item[0])) for models in by_base.values())
    return [run for _, of_model in chosen for run in of_model]


def tuning(runs: Runs) -> list[PlannedRun]:
    """Those on the models for tuning."""
    return [run for run in one_model(runs) if run.base in TUNING_BASES]


def counted(runs: Runs) -> list[PlannedRun]:
    """Those on the models that count."""
    return [run for run in one_model(runs) if run.base in COUNTED_BASES]


def scores_by_rate(runs: Runs, world: str, arm: str) -> dict[float, list[float]]:
    """Scores at the end on the tuning models, by rate, in the order of the bases."""
    found: dict[float, list[float]] = {}
    for run in sorted(tuning(runs), key=lambda each: (each.rate, each.base, each.seed)):
        if (run.world, run.arm) == (world, arm):
            found.setdefault(run.rate, []).append(run.score)
    return found


def chosen_rate(runs: Runs, world: str, arm: str) -> float | None:
    """The rate with the highest mean score over the tuning models, the lowest among equals.

    None while a rate lacks a model.
    """
    found = scores_by_rate(runs, world, arm)
    if any(len(found.get(rate, [])) < len(TUNING_BASES) for rate in RATES):
        return None
    return max(RATES, key=lambda rate: (mean(found[rate]), -rate))


def gains_over_rule(runs: Runs, world: str, arm: str, rate: float) -> dict[int, float]:
    """By tuning model, an idea's score at the end minus that of RULE at its chosen rate."""
    of_rule = chosen_rate(runs, world, "rule")
    mine, base = (
        {} if r is None else _scores(runs, world, a, r) for a, r in ((arm, rate), ("rule", of_rule))
    )
    return {place: mine[place] - base[place] for place in sorted(mine.keys() & base.keys())}


def _scores(runs: Runs, world: str, arm: str, rate: float) -> dict[int, float]:
    return {
        run.base: run.score for run in tuning(runs) if (run.world, run.arm, run.rate) == (world, arm, rate)
    }


def ranked_ideas(runs: Runs) -> list[tuple[str, float, float]]:
    """Idea, rate and mean gain over RULE, the best first; those that both tuning models have."""
    found = []
    for arm in IDEAS:
        for rate in RATES:
            gains = gains_over_rule(runs, CONFIRMED_IN, arm, rate)
            if len(gains) == len(TUNING_BASES):
                found.append((arm, rate, mean(gains.values())))
    return sorted(found, key=lambda each: -each[2])
