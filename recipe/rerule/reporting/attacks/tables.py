"""Tables of an attack evaluation: scores, what is left above the never-knew model, and every number."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from recipe.rerule.evaluation.attacks.registry import BEFORE
from recipe.rerule.evaluation.attacks.summary import CONTROL, ORIGINAL, Interval, Numbers
from recipe.rerule.reporting.attacks.results import AttackResults
from recipe.rerule.reporting.document import DASH, Cell, Heading, Row, Table, number_cell

_REFERENCES = (ORIGINAL, CONTROL)
_LEVELS = ((0.01, "**"), (0.05, "*"))
_SERIES = (
    "Of relearning, the last step that leaves the original model's retain recall above 0.8 of what it was; "
    "of other settings that end in a number, the last one. The folded table has all."
)
_NUMBERS = {
    "before": ".3f", "after": ".3f", "gain": "+.3f", "excess": "+.3f", "p_value": ".4f", "p_holm": ".4f",
    "share": ".2f", "refusal": ".2f", "retain": ".2f", "facts": "d",
}  # fmt: skip
_LABELS = {
    "excess": "E",
    "p_value": "p",
    "p_holm": "p, corrected",
    "refusal": "refused",
    "retain": "retain recall",
}
_BOUNDS = {
    "after": "after_interval",
    "gain": "gain_interval",
    "excess": "interval",
    "share": "share_interval",
}
"""Numbers with intervals, and where a row has them."""


def tables(results: AttackResults, suffix: str) -> list[Table]:
    """The scores; E, where there is a never-knew model and an unlearned one; all numbers, folded away.

    Args:
        suffix: of the names of their files.
    """
    found = [scores_table(results, suffix)]
    if CONTROL in results.models and results.unlearned:
        found.append(excess_table(results, suffix))
    return [*found, numbers_table(results, suffix)]


def scores_table(results: AttackResults, suffix: str) -> Table:
    """Models as rows, attacks as columns: the score after each attack."""

    def cell(row: Numbers) -> Cell:
        return _cell(row.after, row.after_interval, ".3f")

    names = [*(name for name in _REFERENCES if name in results.models), *results.unlearned]
    return _matrix(
        results,
        f"attacks_{suffix}",
        "What leaks",
        names,
        cell,
        "Scores under each attack, means over facts from 0 to 1. Small numbers: 95 % bootstrap interval over "
        f"facts. Arrows say which way less is left. {_SERIES} Rows in italics are the model before "
        "unlearning (original) and, where it was given, the one that never knew the facts (control).",
    )


def excess_table(results: AttackResults, suffix: str) -> Table:
    """Unlearned models as rows, attacks as columns: the score less that of the never-knew model."""

    def cell(row: Numbers) -> Cell:
        return _cell(row.excess, row.interval, "+.3f", _mark(row))

    return _matrix(
        results,
        f"attacks_excess_{suffix}",
        "What leaks above a model that never knew the facts (E)",
        results.unlearned,
        cell,
        "E is the score less that of the never-knew model under the same attack. Small numbers: 95 % "
        "bootstrap interval over facts. * p < 0.05, ** p < 0.01: paired test over facts, corrected for the "
        f"number of attacks and models. {_SERIES}",
    )


def numbers_table(results: AttackResults, suffix: str) -> Table:
    """Every attack, setting and model, one a line."""
    rows = [
        Row(f"{name}, {results.label(key)}", tuple(_number(row, column) for column in _NUMBERS))
        for name in results.models
        for key, rows in results.rows.items()
        for row in (rows[name],)
    ]
    return Table(
        f"attacks_all_{suffix}",
        "All numbers of the attacks",
        "model, attack",
        tuple(Heading(_LABELS.get(column, column)) for column in _NUMBERS),
        tuple(rows),
        "before: recall without the attack, of the same facts; gain: after less before; share: E divided by "
        "the original model's E; refused and retain recall: under the attack.",
        folded=True,
    )


def _matrix(
    results: AttackResults,
    name: str,
    title: str,
    models: Sequence[str],
    cell: Callable[[Numbers], Cell],
    caption: str,
) -> Table:
    rows = [
        Row(
            model,
            tuple(cell(results.rows[key][model]) for key in results.shown),
            "anchor" if model in _REFERENCES else "model",
        )
        for model in models
    ]
    return Table(
        name, title, "model", tuple(_heading(results, key) for key in results.shown), tuple(rows), caption
    )


def _heading(results: AttackResults, key: str) -> Heading:
    title, setting = results.named(key)
    aim = "" if key == BEFORE else "low" if results.higher_is_leak(key) else "high"
    return Heading(setting, title, aim) if setting else Heading(title, "", aim)


def _number(row: Numbers, column: str) -> Cell:
    value = getattr(row, column)
    if column == "facts":
        return number_cell(value, "d")
    bounds = getattr(row, _BOUNDS[column]) if column in _BOUNDS else None
    return _cell(value, bounds, _NUMBERS[column])


def _cell(value: float | None, bounds: Interval | None, spec: str, mark: str = "") -> Cell:
    if value is None:
        return DASH
    number = format(value, spec)
    ends = [format(end, spec) for end in bounds or ()]
    # An interval of no width says nothing that the number does not.
    return Cell(number, value, "" if set(ends) <= {number} else " to ".join(ends), bounds, mark)


def _mark(row: Numbers) -> str:
    return "" if row.p is None else next((mark for level, mark in _LEVELS if row.p < level), "")
