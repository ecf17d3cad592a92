"""What `evaluate attack` found: sentences made from its numbers, figures and tables.

No sentence is about an attack that was chosen for its result on an unlearned model: each relearning attack
has a sentence about one step (`AttackResults.shown_step`), and all others are counted, by p-values that are
corrected for their number. templates/attacks.txt has the sentences.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from matplotlib.axes import Axes
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from recipe.rerule.evaluation.attacks.registry import BEFORE
from recipe.rerule.evaluation.attacks.summary import (
    ATTACKED,
    CONTROL,
    ORIGINAL,
    RESULTS,
    Numbers,
    Results,
)
from recipe.rerule.io import read_json
from recipe.rerule.reporting.document import (
    TEMPLATES,
    Figure,
    Part,
    Row,
    Section,
    Table,
    mark_of,
    plain_columns,
)
from recipe.rerule.reporting.evaluations import check_given_once, folder_of, heading_of, validated
from recipe.rerule.reporting.style import LINES, MAX_LINES, error_bar, figure

DAMAGED = 0.8
"""Share of the retain recall it is compared with, below which a model's retain recall has fallen."""
READING = '"It gives 60 % of the answers" means that the mean recall of its answers is 0.60, over facts.'
READING_CONTROL = (
    "The model that never knew the facts was trained without them and attacked in the same way: what it "
    "gives was guessed, or taught by the attack."
)
WITHOUT_CONTROL = (
    "This evaluation has no model that never knew the facts (--control). An attack that got an answer back "
    "cannot be told from one that taught it, so nothing here is said to have survived."
)
WITHOUT_UNLEARNED = "No model of this evaluation has unlearned anything."
_REFERENCES: dict[str, dict[str, Any]] = {
    ORIGINAL: {"color": "#1c1c1c", "linestyle": "-", "label": "original model"},
    CONTROL: {"color": "#1c1c1c", "linestyle": (0, (1.5, 1.5)), "label": "model that never knew"},
}
"""Lines of the models that an unlearned one is compared with."""
_VERDICTS = {
    "above": "{0} leaks more",
    "open": "the difference can be chance, given the number of tests,",
    "below": "{0} leaks less",
    None: "there are too few facts for a test",
}
"""What is counted of the other attacks."""
_NUMBERS = {
    "before": ("before", "", ".3f"),
    "after": ("after", "after_interval", ".3f"),
    "gain": ("gain", "gain_interval", "+.3f"),
    "E": ("excess", "interval", "+.3f"),
    "p": ("p_value", "", ".4f"),
    "p, corrected": ("p_holm", "", ".4f"),
    "share": ("share", "share_interval", ".2f"),
    "refused": ("refusal", "", ".2f"),
    "retain recall": ("retain", "", ".2f"),
    "facts": ("facts", "", ".0f"),
}
"""Columns of the table of all numbers: the fields of `Numbers` with value and interval, and the format."""
_MARK, _LONGEST_NAME = "#0072B2", 18
_ROWS: TypeAdapter[Results] = TypeAdapter(Results)


class Declared(BaseModel):
    """What meta.json says of an attack: see `Attack`."""

    model_config = ConfigDict(strict=True)

    title: str
    higher_is_leak: bool
    curve: bool
    trained_on: str = ""


class _Meta(BaseModel):
    """What is read of meta.json."""

    model_config = ConfigDict(strict=True)

    # Files of the report are named after it.
    benchmark: Annotated[str, Field(pattern=r"^\w{1,60}$")]
    attacks: dict[str, Declared]


@dataclass(frozen=True)
class AttackResults:
    """One folder.

    Attributes:
        title: of the benchmark, in headings.
        rows: attacks.json, BEFORE among its attacks.
        attacks: what is declared of each attack.
        meta: meta.json.
    """

    benchmark: str
    title: str
    rows: Results
    attacks: Mapping[str, Declared]
    meta: Mapping[str, Any]

    @property
    def models(self) -> list[str]:
        """All models in their order, the never-knew model last."""
        return list(self.rows[BEFORE])

    @property
    def unlearned(self) -> list[str]:
        """The models that are neither the original nor the never-knew model."""
        return [name for name in self.models if name not in _REFERENCES]

    @property
    def steps(self) -> dict[str, list[int]]:
        """The steps of each relearning attack, in order; before the first one is BEFORE."""
        found: dict[str, list[int]] = {}
        for attack, _, setting in (key.partition("/") for key in self.rows):
            if self.attacks[attack].curve:
                found[attack] = sorted([*found.get(attack, []), int(setting)])
        return found

    @property
    def shown(self) -> list[str]:
        """What the figure and the first tables show, BEFORE first.

        Of relearning that is one step; of other settings that end in a number, such as samples, the last.
        """

        def of_series(key: str) -> tuple[str, int]:
            found = re.fullmatch(r"(.*/.*?)(\d+)", key)
            return (found[1], int(found[2])) if found else (key, 0)

        last = {of_series(key)[0]: key for key in sorted(self.rows, key=lambda key: of_series(key)[1])}
        last |= {f"{attack}/": f"{attack}/{self.shown_step(attack)}" for attack in self.steps}
        return [key for key in self.rows if last[of_series(key)[0]] == key]

    def shown_step(self, attack: str) -> int:
        """The last step of relearning that leaves the original model whole, or else the first step.

        Without an original model the never-knew model decides, without either it is the last step. No
        unlearned model has a say in it.
        """
        steps = self.steps[attack]
        decides = next((name for name in _REFERENCES if name in self.models), None)
        if decides is None:
            return steps[-1]
        before = self.rows[BEFORE][decides].retain
        whole = [
            step for step in steps if not has_fallen(self.rows[f"{attack}/{step}"][decides].retain, before)
        ]
        return whole[-1] if whole else steps[0]

    def higher_is_leak(self, key: str) -> bool:
        """Whether a higher score of an attack means that more was left."""
        return self.attacks[key.partition("/")[0]].higher_is_leak

    def named(self, key: str) -> tuple[str, str]:
        """The title of an attack, and its setting in words; "" of an attack that has one only."""
        attack, _, setting = key.partition("/")
        if self.attacks[attack].curve:
            setting = f"{setting} steps"
        return self.attacks[attack].title, setting.replace("_", " ")

    def label(self, key: str) -> str:
        """An attack and its setting in words."""
        return ": ".join(filter(None, self.named(key)))


def has_fallen(retain: float | None, compared: float | None) -> bool:
    """Whether a retain recall is that far below another; not where one of them was not measured."""
    return retain is not None and compared is not None and retain < DAMAGED * compared


def read_attacks(paths: Sequence[Path], own_title: str | None = None) -> list[AttackResults]:
    """The folders, in the order given.

    `own_title` is what data of one's own is called.

    Raises ValueError: a folder is given twice, or a file is missing or not as `evaluate attack` writes it.
    """
    check_given_once("--attacks", paths)
    found = []
    for path in paths:
        folder = folder_of(path)
        if (folder / "results.json").is_file():
            raise ValueError(f"--attacks {path} is a folder of evaluate model; give it as --results")
        marker, file = folder / ATTACKED.marker, folder / RESULTS
        content = read_json(marker)
        meta = validated(TypeAdapter(_Meta), content, marker)
        rows = validated(_ROWS, read_json(file), file)
        _check(rows, meta.attacks, file)
        title = heading_of(meta.benchmark, own_title)
        found.append(AttackResults(meta.benchmark, title, rows, meta.attacks, content))
    return found


def _check(rows: Results, attacks: Mapping[str, Declared], file: Path) -> None:
    """Refuse numbers that `evaluate attack` cannot have written. Raises ValueError."""
    if BEFORE not in rows:
        raise ValueError(f"{file} has no scores without an attack ({BEFORE}), which evaluate attack writes")
    for key, of_models in rows.items():
        attack, _, setting = key.partition("/")
        if attack not in attacks:
            raise ValueError(f"{file.with_name(ATTACKED.marker)} does not say what the attack {attack} is")
        if of_models.keys() != rows[BEFORE].keys():
            raise ValueError(f"{file}: the models under the attack {key} are not those without an attack")
        if attacks[attack].curve and not re.fullmatch(r"[1-9]\d*", setting):
            raise ValueError(f"{file}: the setting of {key} is no step")
        for model, one in of_models.items():
            if one.before is not None and not 0 <= one.after <= 1:
                raise ValueError(f"{file}: after of {model} under {key} is {one.after:g}, outside 0 to 1")


def attack_sections(evaluations: Sequence[AttackResults]) -> list[Section]:
    """A section for each attack evaluation; files of a second one on a benchmark have a number."""
    sections = []
    for place, results in enumerate(evaluations):
        count = 1 + sum(earlier.benchmark == results.benchmark for earlier in evaluations[:place])
        suffix = results.benchmark if count == 1 else f"{results.benchmark}_{count}"
        figures = (attack_figure(results, suffix), curves_figure(results, suffix))
        parts: list[Part] = [*paragraphs(results), *(one for one in figures if one), *tables(results, suffix)]
        sections.append(Section(f"What attacks get out: {results.title}", parts))
    return sections


def paragraphs(results: AttackResults) -> list[str]:
    """What a reader needs to read first: a paragraph for each unlearned model, and how to read it."""
    told = [text for model in results.unlearned for text in sentences_on(results, model)]
    control = READING_CONTROL if CONTROL in results.models else WITHOUT_CONTROL
    return [*(told or [WITHOUT_UNLEARNED]), READING, control]


def sentences_on(results: AttackResults, model: str) -> list[str]:
    """A paragraph on one unlearned model, and one on the attacks that are only counted."""
    before = results.rows[BEFORE]
    fallen = (name for name in _REFERENCES if name in before)
    others = [key for key in results.shown if key.partition("/")[0] not in (BEFORE, *results.steps)]
    verdicts = {key: results.rows[key][model].verdict_of_many(results.higher_is_leak(key)) for key in others}
    labels = {
        told: [results.label(key) for key in others if verdicts[key] == verdict]
        for verdict, told in _VERDICTS.items()
    }
    text = TEMPLATES.get_template("attacks.txt").render(
        results=results,
        model=model,
        before=before,
        original=ORIGINAL,
        control=CONTROL,
        compared=next((one for one in fallen if has_fallen(before[model].retain, before[one].retain)), None),
        total=len(others) if CONTROL in before else 0,
        counted=[(told.format(model), of_verdict) for told, of_verdict in labels.items() if of_verdict],
        has_fallen=has_fallen,
        points_of=points_of,
    )
    return [paragraph for line in text.splitlines() if (paragraph := line.strip())]


def points_of(low: float, high: float) -> str:
    """An interval in points of a hundred."""
    return f"{round(100 * low)} to {round(100 * high)}".replace("-", "\N{MINUS SIGN}")


def percent(fraction: float | None) -> str:
    """In whole per cent; never 0 or 100 where the number is neither."""
    if fraction is None:
        return "nothing"
    whole = round(100 * fraction)
    if whole == 0 and fraction > 0:
        return "under 1 %"
    return "over 99 %" if whole == 100 and fraction < 1 else f"{whole} %"


TEMPLATES.filters["percent"] = percent


def tables(results: AttackResults, suffix: str) -> list[Table]:
    """What is shown of each attack: the scores and E of the models; and all numbers, folded away.

    `suffix`: of the names of their files.
    """
    columns = []
    for model in [*(name for name in _REFERENCES if name in results.models), *results.unlearned]:
        has_excess = model in results.unlearned and CONTROL in results.models
        columns += plain_columns({"after": ".3f"} | ({"E": "+.3f"} if has_excess else {}), model)
    shown = []
    for key in results.shown:
        cells: dict[Any, Any] = {}
        for model, row in results.rows[key].items():
            cells |= cells_of(row, f"{model} ")
            if row.p is not None:
                cells[f"{model} E", "mark"] = mark_of(row.p)
        shown.append(Row(results.label(key), cells))
    every = [
        Row(f"{name}, {results.label(key)}", cells_of(rows[name]))
        for name in results.models
        for key, rows in results.rows.items()
    ]
    return [
        Table(
            f"attacks_{suffix}",
            "What leaks",
            "attack",
            columns,
            shown,
            "after: the score under the attack, a mean over facts from 0 to 1. E: the score less that of the "
            "never-knew model under the same attack. Small numbers: 95 % bootstrap interval over facts. "
            "* p < 0.05, ** p < 0.01: paired test over facts, corrected for the number of attacks and "
            "models. Of relearning, the table has the last step that leaves the original model's retain "
            "recall above 0.8 of what it was; of other settings that end in a number, the last one. The "
            f"folded table has all.{turned(results)}",
        ),
        Table(
            f"attacks_all_{suffix}",
            "All numbers of the attacks",
            "model, attack",
            plain_columns({label: spec for label, (_, _, spec) in _NUMBERS.items()}),
            every,
            "before: recall without the attack, of the same facts; gain: after less before; share: E divided "
            "by the original model's E; refused and retain recall: under the attack.",
            folded=True,
        ),
    ]


def cells_of(row: Numbers, prefix: str = "") -> dict[Any, Any]:
    """Every number of a row with its interval, by its label behind `prefix`."""
    cells: dict[Any, Any] = {}
    for label, (name, interval, _) in _NUMBERS.items():
        low, high = (getattr(row, interval) if interval else None) or (None, None)
        key = f"{prefix}{label}"
        cells |= {key: getattr(row, name), (key, "low"): low, (key, "high"): high}
    return cells


def turned(results: AttackResults) -> str:
    """Which attacks have a high score where less is left."""
    names = [results.label(key) for key in results.shown if not results.higher_is_leak(key)]
    return f" In these, a high score means that less is left: {', '.join(names)}." if names else ""


def attack_figure(results: AttackResults, suffix: str) -> Figure | None:
    """Models as rows, attacks as cells; None without an unlearned model."""
    names = results.unlearned
    if not names:
        return None

    def fill(axes: Axes, key: str) -> None:
        rows = results.rows[key]
        axes.set_title("\n".join(filter(None, results.named(key))), fontsize=8)
        for name, line in _REFERENCES.items():
            if name in rows:
                axes.axvline(rows[name].after, zorder=2, linewidth=1.4, **line)
        for place, name in enumerate(names):
            _draw(axes, place, rows[name])
        labels = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in names]
        place_in_grid = axes.get_subplotspec()
        named = place_in_grid is not None and place_in_grid.is_first_col()
        axes.set_yticks(range(len(names)), labels if named else [""] * len(names))
        axes.set_ylim(len(names) - 0.5, -0.5)
        if all(0 <= row.after <= 1 for row in rows.values()):
            axes.set_xlim(-0.06, 1.06)
            axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"])

    return figure(
        f"attacks_{suffix}",
        "What attacks get out",
        "Each row is a model, each cell an attack. The filled mark and the number are the score under the "
        "attack, with its 95 % interval over facts; the hollow mark is the same model without the attack, "
        "where the two compare. The full line is the original model under the same attack. The dotted line "
        "is a model that never knew the facts, under the same attack: what lies right of it was still in the "
        f"model.{turned(results)}",
        f"Scores of {', '.join(names)} under each attack, as marks. The tables have the numbers.",
        results.shown,
        fill,
        "score",
        columns=4,
        height=0.75 + 0.26 * len(names),
    )


def _draw(axes: Axes, place: int, row: Numbers) -> None:
    """A model's scores with and without the attack, in its line of a cell."""
    if row.before is not None:
        axes.plot([row.before, row.after], [place, place], color=_MARK, linewidth=0.8, linestyle=":")
        axes.plot(
            row.before, place, "D", color=_MARK, markerfacecolor="white", markersize=4.5, zorder=3,
            linestyle="none", label="without the attack",
        )  # fmt: skip
    axes.errorbar(
        row.after, place, xerr=error_bar(row.after, *(row.after_interval or (math.nan, math.nan))), fmt="o",
        color=_MARK, markersize=5, elinewidth=1.3, zorder=4, label="under the attack",
    )  # fmt: skip
    axes.text(1.02, place, f"{row.after:.2f}", transform=axes.get_yaxis_transform(), va="center", fontsize=8)


def curves_figure(results: AttackResults, suffix: str) -> Figure | None:
    """Scores over the steps of each relearning attack; None where there is none."""
    # A panel for each attack and for as many unlearned models as can be told apart.
    panels = [
        (attack, results.unlearned[first : first + MAX_LINES])
        for attack in results.steps
        for first in range(0, len(results.unlearned), MAX_LINES)
    ]
    if not panels:
        return None

    def fill(axes: Axes, panel: tuple[str, Sequence[str]]) -> None:
        attack, models = panel
        axes.set_title(results.attacks[attack].title)
        steps = [0, *results.steps[attack]]
        keys = [BEFORE, *(f"{attack}/{step}" for step in steps[1:])]
        places = [math.log2(1 + step) for step in steps]
        lines = {name: line for name, line in _REFERENCES.items() if name in results.models}
        lines |= {name: line | {"label": name} for name, line in zip(models, LINES, strict=False)}
        for name, line in lines.items():
            axes.plot(places, [results.rows[key][name].after for key in keys], clip_on=False, **line)
        axes.set_xticks(places, list(map(str, steps)))
        axes.set_ylim(-0.03, 1.03)

    return figure(
        f"relearning_{suffix}",
        "How soon it comes back",
        "Recall of facts that the training did not contain, over the steps of relearning (spaced by "
        "log2(1 + step)); step 0 is before it. A model that forgot nothing starts where the original model "
        "is; one that forgot all follows the model that never knew.",
        f"Line charts of recall by step for {', '.join(results.models)}. The tables have the numbers.",
        panels,
        fill,
        "training step",
    )
