"""The plan's answers to questions 1 and 2, once all models that count are done; until then how many are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from benchmarks.study.comparison import Paired, paired
from benchmarks.study.differences import Pair, difference_cell, name_of
from benchmarks.study.planned.choice import chosen_rate, counted, ranked_ideas
from benchmarks.study.planned.plan import (
    COUNTED,
    COUNTED_BASES,
    COUNTED_SEEDS,
    PRIMARY,
    SECONDARY,
    WORLDS,
)
from benchmarks.study.planned.runs import PlannedRun
from benchmarks.study.tables import bare
from recipe.rerule.evaluation.statistics.comparison import holm
from recipe.rerule.reporting.document import DASH, Cell, Heading, Row, Table, number_cell

Runs = Sequence[PlannedRun]
Model = tuple[str, int]
"""World and base."""
Values = Mapping[Model, tuple[float, float]]
"""Of two arms, by model."""
ALL_MODELS = len(WORLDS) * len(COUNTED_BASES)
MARGIN = 0.02
"""How far an idea may stay behind RULE and still save."""


def model_values(runs: Runs, arm: str, rates: Mapping[str, float | None]) -> dict[Model, float]:
    """Mean score over the run seeds of each model that counts and has all of them; `rates`: by world."""
    found: dict[Model, list[float]] = {}
    for run in counted(runs):
        if run.arm == arm and run.rate == rates[run.world]:
            found.setdefault((run.world, run.base), []).append(run.score)
    return {model: mean(scores) for model, scores in found.items() if len(scores) == len(COUNTED_SEEDS)}


def differences(one: Mapping[Model, float], other: Mapping[Model, float]) -> dict[Model, tuple[float, float]]:
    """Both values of each model that has both."""
    return {model: (one[model], other[model]) for model in sorted(one.keys() & other.keys())}


def by_pair(runs: Runs) -> dict[Pair, Values]:
    """Both values of each model, for the primary pair and the secondary ones."""
    rates = {arm: {world: chosen_rate(runs, world, arm) for world in WORLDS} for arm in COUNTED}
    values = {arm: model_values(runs, arm, rates[arm]) for arm in COUNTED}
    return {pair: differences(values[pair[0]], values[pair[1]]) for pair in (PRIMARY, *SECONDARY)}


def compared(pairs: Mapping[Pair, Values]) -> dict[Pair, Paired]:
    """Each pair over all models; empty until all are done."""
    if any(len(found) < ALL_MODELS for found in pairs.values()):
        return {}
    return {pair: compare(found) for pair, found in pairs.items()}


def question_1(runs: Runs) -> Table:
    """The primary contrast and the secondary ones."""
    pairs = by_pair(runs)
    whole = compared(pairs)
    p_values = {PRIMARY: whole[PRIMARY].p_value} | corrected(whole) if whole else {}
    rows = [Row(name_of(pair), _cells(pairs[pair], whole.get(pair), p_values.get(pair))) for pair in pairs]
    heads = ("models", "mean score, both worlds", "p", *WORLDS)
    return bare([Heading(head) for head in heads], rows, lead="pair; p by Holm for all but the first")


def corrected(whole: Mapping[Pair, Paired]) -> dict[Pair, float]:
    """p-values of the secondary contrasts by Holm."""
    return dict(zip(SECONDARY, holm([whole[pair].p_value for pair in SECONDARY]), strict=True))


def compare(found: Values) -> Paired:
    """The first of each pair of values minus the second, over models."""
    return paired(*zip(*found.values(), strict=True))


def of_world(found: Values, world: str) -> Values:
    """Those of a world's models."""
    return {model: both for model, both in found.items() if model[0] == world}


def _cells(found: Values, whole: Paired | None, p_value: float | None) -> tuple[Cell, ...]:
    count = Cell(f"{len(found)} of {ALL_MODELS}")
    if whole is None:
        return (count, *[DASH] * (2 + len(WORLDS)))
    by_world = (compare(of_world(found, name)) for name in WORLDS)
    return (count, difference_cell(whole), number_cell(p_value, ".4f"), *map(difference_cell, by_world))


def question_2(runs: Runs) -> Table:
    """The chosen idea against RULE."""
    heads = ("models", "mean score at 0.6 of the tokens, minus RULE", *WORLDS, "answer")
    ranked = ranked_ideas(runs)
    if not ranked:
        return bare([Heading(head) for head in heads], [Row("not chosen yet", (DASH,) * len(heads))], "idea")
    arm, rate, _ = ranked[0]
    found = idea_and_rule(runs, arm, rate)
    whole = compare(found) if len(found) == ALL_MODELS else None
    count, difference, _, *by_world = _cells(found, whole, None)
    answer = Cell(verdict(whole) if whole else "not yet")
    return bare(
        [Heading(head) for head in heads],
        [Row(f"`{arm}` at {rate:g} x", (count, difference, *by_world, answer))],
        "idea",
    )


def idea_and_rule(runs: Runs, idea: str, rate: float) -> Values:
    """An idea at 0.6 of the tokens, and RULE at its end and its own rate, on the models that count."""
    of_rule = {world: chosen_rate(runs, world, "rule") for world in WORLDS}
    own = model_values(runs, idea, dict.fromkeys(WORLDS, rate))
    return differences(own, model_values(runs, "rule", of_rule))


def verdict(found: Paired) -> str:
    """The plan's rule."""
    if found.low >= -MARGIN:
        return "saves"
    return "does not save" if found.high < 0 else "open"
