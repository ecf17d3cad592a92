"""Tables of the plan, and of what was attacked of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from statistics import mean

from benchmarks.study.attacked.plan import ARMS, BASES, MARGIN, MEASURES, PAIRS, PRIMARY, PRIMARY_MEASURE
from benchmarks.study.attacked.results import Attacked
from benchmarks.study.comparison import Paired, paired
from benchmarks.study.differences import Pair, difference_cell, name_of
from benchmarks.study.planned.plan import PLANNED
from benchmarks.study.tables import bare, code, in_markdown, made_of
from recipe.rerule.evaluation.attacks.material import FORGET, REFUSAL, RETAIN
from recipe.rerule.evaluation.attacks.registry import BEFORE
from recipe.rerule.reporting.attacks.results import CONTROL, ORIGINAL
from recipe.rerule.reporting.document import DASH, Cell, Heading, Row, Table, number_cell

NOT_YET = "No model was attacked yet."
MODELS = (ORIGINAL, *ARMS, CONTROL)
ALSO = {"quantise_4": "4 bits", "relearn_retain/8": "retain rows, 8 steps", "logit_lens": "logit lens"}
"""Scores that are shown and answer nothing, with their headings."""
_SHOWN = {
    "relearn_forget_half/8": "other facts, 8 steps",
    "samples/max_16": "best of 16",
    "memorisation/extraction_strength": "extraction strength",
}


def arms() -> Table:
    """What is attacked."""
    rows = [Row(code(arm), (Cell(PLANNED[arm].meaning),)) for arm in ARMS]
    return bare([Heading("what it is")], rows, lead="arm")


def measures() -> Table:
    """What answers the question."""
    rows = [Row(code(name), (Cell(meaning),)) for name, meaning in MEASURES.items()]
    return bare([Heading("score")], rows, lead="attack")


def pairs() -> Table:
    """What is compared."""
    rows = [Row(name_of(pair), (Cell("primary" if pair == PRIMARY else "secondary"),)) for pair in PAIRS]
    return bare([Heading("which")], rows, lead="pair")


def status(found: Attacked) -> Table:
    """How many bases are done."""
    counts = (Cell(f"{len(found.bases)} of {len(BASES)}"), Cell(", ".join(map(str, found.bases))))
    return bare([Heading("stage-1 models"), Heading("bases")], [Row("attacked", counts)])


def scores(found: Attacked) -> Table:
    """Means over bases, each the mean over its facts."""
    columns = {
        (FORGET, BEFORE): "forget recall",
        (REFUSAL, BEFORE): "refused",
        (RETAIN, BEFORE): "retain recall",
    }
    columns |= {(FORGET, attack): head for attack, head in {**_SHOWN, **ALSO}.items()}
    rows = [
        Row(code(model), tuple(_mean_cell(by_base(found, model, *place)) for place in columns))
        for model in MODELS
        if by_base(found, model, BEFORE)
    ]
    return bare([Heading(head) for head in columns.values()], rows, lead="model")


def differences(found: Attacked) -> Table:
    """Each pair of arms in each score that answers; shown once all bases are done."""
    done = len(found.bases) == len(BASES)
    rows = []
    for measure in MEASURES:
        for pair in PAIRS:
            whole = compare(found, pair, measure) if done else None
            rows.append(Row(f"{name_of(pair)}, {_SHOWN[measure]}", _answer_cells(whole, pair, measure)))
    heads = ("difference, 95 % interval", "answer", "p")
    return bare([Heading(head) for head in heads], rows, lead="pair, score")


def by_base(found: Attacked, model: str, of: str, attack: str = "") -> Mapping[int, float]:
    """Mean over facts, by base; of the forget set where only an attack is given."""
    place, name = (of, attack) if attack else (FORGET, of)
    of_bases: Mapping[int, Mapping[Hashable, float]] = found.sets.get(place, {}).get((name, model), {})
    return {base: mean(facts.values()) for base, facts in of_bases.items()}


def compare(found: Attacked, pair: Pair, measure: str) -> Paired:
    """The first arm of a pair minus the second, over the bases."""
    one, other = (by_base(found, arm, measure) for arm in pair)
    return paired([one[base] for base in BASES], [other[base] for base in BASES])


def answer(found: Paired) -> str:
    """The plan's rule."""
    if found.low > 0:
        return "more"
    if found.high < 0:
        return "less"
    return "alike" if max(-found.low, found.high) <= MARGIN else "open"


def _answer_cells(whole: Paired | None, pair: Pair, measure: str) -> tuple[Cell, ...]:
    if whole is None:
        return DASH, Cell("not yet"), DASH
    tested = (pair, measure) == (PRIMARY, PRIMARY_MEASURE)
    p_value = number_cell(whole.p_value, ".4f") if tested else DASH
    return difference_cell(whole), Cell(answer(whole)), p_value


def _mean_cell(values: Mapping[int, float]) -> Cell:
    return number_cell(mean(values.values()), ".3f") if values else DASH


PLAN_TABLES: dict[str, Callable[[], Table]] = {
    "attacked arms": arms,
    "attacked measures": measures,
    "attacked pairs": pairs,
}
RESULT_TABLES: dict[str, Callable[[Attacked], Table]] = {
    "attacked status": status,
    "attacked scores": scores,
    "attacked differences": differences,
}


def table_named(name: str, found: Attacked) -> str:
    """One table, in Markdown. Raises ValueError where there is none of that name."""
    return in_markdown(name, PLAN_TABLES | made_of(RESULT_TABLES, found), NOT_YET)
