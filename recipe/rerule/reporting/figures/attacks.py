"""Figures of an attack evaluation: models and attacks, and the curves of relearning."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from recipe.rerule.evaluation.attacks.summary import CONTROL, ORIGINAL, Curve, Numbers
from recipe.rerule.reporting.attacks.results import AttackResults
from recipe.rerule.reporting.document import Figure
from recipe.rerule.reporting.figures.style import (
    LINES,
    MAX_LINES,
    NARROW_INCHES,
    WIDE_INCHES,
    Fill,
    small_multiples,
    wide_and_narrow,
)

_WIDE_COLUMNS, _NARROW_COLUMNS = 4, 2
_LONGEST_NAME = 18
_FRAME_INCHES, _ROW_INCHES = 0.75, 0.26
_MARK = "#0072B2"
_REFERENCES: dict[str, dict[str, Any]] = {
    ORIGINAL: {"color": "#1c1c1c", "linestyle": "-", "linewidth": 1.4, "label": "original model"},
    CONTROL: {
        "color": "#1c1c1c",
        "linestyle": (0, (1.5, 1.5)),
        "linewidth": 1.4,
        "label": "model that never knew",
    },
}


@dataclass(frozen=True)
class AttackCell:
    """A panel: one attack on all models.

    Attributes:
        named: whether the names of the models stand at its left.
    """

    key: str
    named: bool


@dataclass(frozen=True)
class CurvePanel:
    """A panel: one relearning attack on some unlearned models, with the models they are compared with."""

    title: str
    references: tuple[Curve, ...]
    curves: tuple[Curve, ...]


def attack_figure(results: AttackResults, suffix: str) -> Figure | None:
    """Models as rows, attacks as cells; None without an unlearned model."""
    if not results.unlearned:
        return None
    height = _FRAME_INCHES + _ROW_INCHES * len(results.unlearned)
    wide, narrow = (
        small_multiples(_cells(results, columns), _cell_filler(results), "score", columns, width, height)
        for columns, width in ((_WIDE_COLUMNS, WIDE_INCHES), (_NARROW_COLUMNS, NARROW_INCHES))
    )
    return Figure(
        f"attacks_{suffix}", "What attacks get out", _explanation(results), _described(results), wide, narrow
    )


def _cells(results: AttackResults, columns: int) -> list[AttackCell]:
    return [AttackCell(key, place % columns == 0) for place, key in enumerate(results.shown)]


def _explanation(results: AttackResults) -> str:
    lines = {
        ORIGINAL: "The full line is the original model under the same attack. ",
        CONTROL: "The dotted line is a model that never knew the facts, under the same attack: what lies "
        "right of it was still in the model. ",
    }
    turned = [results.label(key) for key in results.shown if not results.higher_is_leak(key)]
    return (
        "Each row is a model, each cell an attack. The filled mark and the number are the score under the "
        "attack, with its 95 % interval over facts; the hollow mark is the same model without the attack, "
        "where the two compare. "
        + "".join(text for name, text in lines.items() if name in results.models)
        + (
            f"Turned round, so that a high score means that less is left: {', '.join(turned)}."
            if turned
            else ""
        )
    ).strip()


def _described(results: AttackResults) -> str:
    scores = (
        f"{results.label(key)}: "
        + ", ".join(f"{name} {row.after:.2f}" for name, row in results.rows[key].items())
        for key in results.shown
    )
    return f"Scores of the models under each attack. {'; '.join(scores)}."


def _cell_filler(results: AttackResults) -> Fill:
    names = results.unlearned

    def fill(axes: Axes, cell: AttackCell) -> None:
        rows = results.rows[cell.key]
        axes.set_title("\n".join(filter(None, results.named(cell.key))), fontsize=8)
        for name, line in _REFERENCES.items():
            if name in rows:
                axes.axvline(rows[name].after, zorder=2, **line)
        for place, name in enumerate(names):
            _draw(axes, place, rows[name])
        _frame(axes, names, cell, [row.after for row in rows.values()])

    return fill


def _draw(axes: Axes, place: int, row: Numbers) -> None:
    low, high = row.after_interval or (row.after, row.after)
    error = [[max(0.0, row.after - low)], [max(0.0, high - row.after)]]
    if row.before is not None:
        axes.plot([row.before, row.after], [place, place], color=_MARK, linewidth=0.8, linestyle=":")
        axes.plot(
            row.before, place, "D", color=_MARK, markerfacecolor="white", markersize=4.5, zorder=3,
            linestyle="none", label="without the attack",
        )  # fmt: skip
    axes.errorbar(
        row.after, place, xerr=error, fmt="o", color=_MARK, markersize=5, elinewidth=1.3, zorder=4,
        label="under the attack",
    )  # fmt: skip
    axes.text(1.02, place, f"{row.after:.2f}", transform=axes.get_yaxis_transform(), va="center", fontsize=8)


def _frame(axes: Axes, names: Sequence[str], cell: AttackCell, scores: Sequence[float]) -> None:
    labels = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in names]
    axes.set_yticks(range(len(names)), labels if cell.named else [""] * len(names))
    axes.set_ylim(len(names) - 0.5, -0.5)
    if all(0 <= score <= 1 for score in scores):
        axes.set_xlim(-0.06, 1.06)
        axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"])


def curves_figure(results: AttackResults, suffix: str) -> Figure | None:
    """Scores over the steps of each relearning attack; None where there is none."""
    panels = list(_curve_panels(results))
    if not panels:
        return None
    return Figure(
        f"relearning_{suffix}",
        "How soon it comes back",
        "Recall of facts that the training did not contain, over the steps of relearning (spaced by "
        "log2(1 + step)); step 0 is before it. A model that forgot nothing starts where the original model "
        "is; one that forgot all follows the model that never knew.",
        "Line charts of recall by step. "
        + "; ".join(f"{curve.attack}, {curve.model}: {_points(curve)}" for curve in results.curves)
        + ".",
        *wide_and_narrow(panels, _fill_curves, "training step"),
    )


def _points(curve: Curve) -> str:
    return ", ".join(f"{score:.2f} at {step}" for step, score in zip(curve.steps, curve.scores, strict=True))


def _curve_panels(results: AttackResults) -> Iterator[CurvePanel]:
    """A panel for each attack and for as many unlearned models as can be told apart."""
    for attack in results.curve_attacks:
        of_attack = {curve.model: curve for curve in results.curves if curve.attack == attack}
        references = tuple(of_attack[name] for name in _REFERENCES if name in of_attack)
        unlearned = [of_attack[name] for name in results.unlearned if name in of_attack]
        for first in range(0, len(unlearned), MAX_LINES):
            shown = tuple(unlearned[first : first + MAX_LINES])
            yield CurvePanel(str(results.attacks[attack]["title"]), references, shown)


def _fill_curves(axes: Axes, panel: CurvePanel) -> None:
    axes.set_title(panel.title)
    for curve in panel.references:
        axes.plot(_places(curve.steps), curve.scores, **_REFERENCES[curve.model])
    for curve, line in zip(panel.curves, LINES, strict=False):
        axes.plot(_places(curve.steps), curve.scores, label=curve.model, clip_on=False, **line)
    steps = sorted({step for curve in (*panel.references, *panel.curves) for step in curve.steps})
    axes.set_xticks(_places(steps), [str(step) for step in steps])
    axes.set_ylim(-0.03, 1.03)


def _places(steps: Sequence[int]) -> list[float]:
    return [math.log2(1 + step) for step in steps]
