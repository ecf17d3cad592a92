"""What survives, as tables for documents: a row a method of the leaderboard, a column an attack."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean

from benchmarks.leaderboard.methods import METHODS
from benchmarks.study.tables import bare, code, interval_cell
from benchmarks.survival.answers import answer
from benchmarks.survival.plan import MODELS, Question, excess
from benchmarks.survival.results import Scores
from recipe.rerule.evaluation.attacks.material import FORGET, REFUSAL, RETAIN
from recipe.rerule.evaluation.attacks.registry import BEFORE
from recipe.rerule.reporting.attacks.results import CONTROL
from recipe.rerule.reporting.document import DASH, Cell, Heading, Row, Table, number_cell

RECALLS = {
    "prefill/affirmative": "prefill",
    "many_shot": "many-shot",
    "samples/max_16": "best of 16",
    "quantise_4": "4 bits",
    "relearn_forget_half/8": "half, 8 steps",
    "relearn_forget_half/32": "half, 32 steps",
    "relearn_retain/32": "retain, 32 steps",
    "relearn_wrong/32": "wrong, 32 steps",
}
"""Attacks whose score is a recall, and their columns."""
AUDITS = {
    "memorisation/extraction_strength": "extraction strength",
    "logit_lens": "logit lens",
    "uds": "UDS",
}
"""Attacks with a score of another kind."""
WITHOUT_EXCESS = ("uds",)
"""What has no E: its score is 1 at the never-knew model by construction, and lower where more is left."""
Sets = Mapping[str, Scores]


def attacks_table(sets: Sets) -> Table:
    """Scores under every attack; means over facts, then over worlds."""
    headings = (
        Heading("worlds"),
        Heading("refused"),
        Heading("retain recall"),
        Heading("recall"),
        *map(Heading, RECALLS.values()),
        *map(Heading, AUDITS.values()),
    )
    return bare(
        headings, [Row(code(method), _scores(sets, name)) for name, method in _models(sets)], "method"
    )


def excess_table(sets: Sets) -> Table:
    """E under every attack that has one, with its interval over worlds and facts."""
    columns = {key: head for key, head in {**RECALLS, **AUDITS}.items() if key not in WITHOUT_EXCESS}
    rows = [
        Row(code(method), tuple(_excess(sets[FORGET], attack, name) for attack in columns))
        for name, method in _models(sets)
        if name != CONTROL
    ]
    return bare(list(map(Heading, columns.values())), rows, "method")


def worlds_of(sets: Sets) -> list[int]:
    """Seeds of the worlds that were attacked."""
    return sorted({seed for seeds in sets.get(FORGET, {}).values() for seed in seeds})


def _models(sets: Sets) -> list[tuple[str, str]]:
    """(name in the results, method of the leaderboard) of those that were attacked, as the leaderboard has
    them."""
    there = {model for _, model in sets.get(FORGET, {})}
    order = list(METHODS)
    found = [(name, method) for name, method in MODELS.items() if name in there]
    return sorted(found, key=lambda pair: order.index(pair[1]))


def _scores(sets: Sets, model: str) -> tuple[Cell, ...]:
    return (
        number_cell(len(sets[FORGET].get((BEFORE, model), {})), "d"),
        *(_mean(sets, name, BEFORE, model) for name in (REFUSAL, RETAIN, FORGET)),
        *(_mean(sets, FORGET, attack, model) for attack in (*RECALLS, *AUDITS)),
    )


def _mean(sets: Sets, name: str, attack: str, model: str) -> Cell:
    seeds = sets.get(name, {}).get((attack, model))
    return number_cell(mean(mean(facts.values()) for facts in seeds.values()), ".2f") if seeds else DASH


def _excess(scores: Scores, attack: str, model: str) -> Cell:
    found = answer(Question("", attack, excess(attack, model), "above"), scores)
    return DASH if found is None else interval_cell(found.value, found.low, found.high, "+.2f")
