"""Folders as `recipe.rerule.evaluate attack` writes them, read and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.attack_command.output import CURVES, RESULTS
from recipe.rerule.io import is_finite, read_json
from recipe.rerule.reporting.attacks.rows import AttackRow, has_fallen, row_of
from recipe.rerule.reporting.evaluations import check_given_once, heading_of, read_lines

ORIGINAL, CONTROL = "original", "control"
"""Names of the model before unlearning and of the never-knew model in every folder."""
BEFORE = "none"
"""The attack that changes nothing."""
Rows = Mapping[str, Mapping[str, AttackRow]]
"""{attack, or attack/variant: {model: numbers}}"""
_META = "meta.json"
_SERIES = re.compile(r"\d+$")
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Declared:
    """What the folder says of an attack."""

    title: str
    higher_is_leak: bool = True


@dataclass(frozen=True)
class RelearningCurve:
    """A model's scores over the steps of one relearning attack, from step 0 on.

    Attributes:
        half_recovery: the first step at which half of the original model's excess is back; None for never,
            or where that cannot be said.
    """

    attack: str
    model: str
    steps: tuple[int, ...]
    scores: tuple[float, ...]
    half_recovery: float | None


@dataclass(frozen=True)
class AttackResults:
    """One folder.

    Attributes:
        title: of the benchmark, in headings.
        rows: BEFORE among them.
        attacks: what is declared of each attack, by name without variant.
        meta: meta.json.
    """

    folder: Path
    benchmark: str
    title: str
    rows: Rows
    attacks: Mapping[str, Declared]
    curves: tuple[RelearningCurve, ...]
    meta: Mapping[str, Any]

    @property
    def models(self) -> list[str]:
        """All models in their order, the never-knew model last."""
        return list(self.rows[BEFORE])

    @property
    def unlearned(self) -> list[str]:
        """The models that are neither the original nor the never-knew model."""
        return [name for name in self.models if name not in (ORIGINAL, CONTROL)]

    @property
    def shown(self) -> list[str]:
        """What the figure and the first tables show, BEFORE first.

        Of relearning that is one step; of other variants that end in a number, such as samples, the last.
        """
        last = {_series(key): key for key in sorted(self.rows, key=_number)}
        last |= {f"{attack}/": f"{attack}/{self.shown_step(attack)}" for attack in self.curve_attacks}
        return [key for key in self.rows if last[_series(key)] == key]

    def shown_step(self, attack: str) -> int:
        """The last step of relearning that leaves the original model whole, or else the first step.

        Without an original model the never-knew model decides, without either it is the last step. No
        unlearned model has a say in it.
        """
        steps = next(curve.steps for curve in self.curves if curve.attack == attack)[1:]
        for name in (ORIGINAL, CONTROL):
            if name in self.models:
                before = self.rows[BEFORE][name].retain
                whole = [s for s in steps if not has_fallen(self.rows[f"{attack}/{s}"][name].retain, before)]
                return whole[-1] if whole else steps[0]
        return steps[-1]

    @property
    def curve_attacks(self) -> list[str]:
        """Names of the attacks with curves, in order."""
        return list(dict.fromkeys(curve.attack for curve in self.curves))

    def declared(self, key: str) -> Declared:
        """Of the attack that a variant belongs to."""
        return self.attacks[key.partition("/")[0]]

    def variant(self, key: str) -> str:
        """The variant in words; "" of an attack that has no others."""
        attack, _, variant = key.partition("/")
        if attack in self.curve_attacks and variant.isdigit():
            return f"{variant} steps"
        return variant.replace("_", " ")

    def named(self, key: str) -> str:
        """An attack and its variant in words."""
        return ": ".join(filter(None, (self.declared(key).title, self.variant(key))))


def read_attacks(paths: Sequence[Path], own_title: str | None = None) -> list[AttackResults]:
    """The folders, in the order given.

    `own_title` is what data of one's own is called.

    Raises:
        ValueError: a folder is given twice, or a file is missing or not as `evaluate attack` writes it.
    """
    check_given_once("--attacks", paths)
    return [_read(path, own_title) for path in paths]


def _read(path: Path, own_title: str | None) -> AttackResults:
    folder = path if path.is_dir() or not path.suffix else path.parent
    if not (folder / RESULTS).is_file() and (folder / "results.json").is_file():
        raise ValueError(f"--attacks {path} is a folder of evaluate model; give it as --results")
    rows = _rows(read_json(folder / RESULTS), folder / RESULTS)
    meta = read_json(folder / _META)
    benchmark, attacks = _declared(meta, folder / _META)
    for key in rows:
        if key.partition("/")[0] not in attacks:
            raise ValueError(f"{folder / _META} does not say what the attack {key} of {RESULTS} is")
    curves = _curves(folder / CURVES, rows)
    return AttackResults(folder, benchmark, heading_of(benchmark, own_title), rows, attacks, curves, meta)


def _rows(content: Any, file: Path) -> dict[str, dict[str, AttackRow]]:
    if not (isinstance(content, dict) and all(isinstance(rows, dict) and rows for rows in content.values())):
        raise ValueError(f"{file} is not {{attack: {{model: numbers}}}} as evaluate attack writes it")
    if BEFORE not in content:
        raise ValueError(f"{file} has no scores without an attack ({BEFORE}), which evaluate attack writes")
    models = set(content[BEFORE])
    found: dict[str, dict[str, AttackRow]] = {}
    for attack, rows in content.items():
        if set(rows) != models:
            name = min(set(rows) ^ models)
            raise ValueError(f"{file}: the model {name} is not under every attack; see {attack}")
        found[attack] = {
            name: row_of(row, f"{file}: NUMBER of {name} under {attack}") for name, row in rows.items()
        }
        _check_excess(found[attack], f"{file}: excess of NAME under {attack}")
    return found


def _check_excess(rows: Mapping[str, AttackRow], where: str) -> None:
    """Raises ValueError where an excess is not the score less that of the never-knew model."""
    floor = rows.get(CONTROL)
    for name, row in rows.items():
        right = None if floor is None else row.after - floor.after
        if (row.excess is None) != (right is None) or abs((row.excess or 0) - (right or 0)) > _ROUNDING:
            raise ValueError(
                f"{where.replace('NAME', name)} is {row.excess}, but after less that of {CONTROL} is {right}"
            )


def _declared(meta: Any, file: Path) -> tuple[str, dict[str, Declared]]:
    """The benchmark and the attacks of meta.json."""
    benchmark = meta.get("benchmark") if isinstance(meta, dict) else None
    attacks = meta.get("attacks") if isinstance(meta, dict) else None
    # Files of the report are named after the benchmark.
    if not isinstance(benchmark, str) or not re.fullmatch(r"\w{1,60}", benchmark):
        raise ValueError(f"{file} names no benchmark; it is not as evaluate attack writes it")
    if not isinstance(attacks, dict):
        raise ValueError(f"{file} has no attacks; it is not as evaluate attack writes it")
    for name, one in attacks.items():
        fits = isinstance(one, dict) and isinstance(one.get("title"), str)
        if not (fits and isinstance(one.get("higher_is_leak", True), bool)):
            raise ValueError(f"{file}: the attack {name} has no title, or no true or false higher_is_leak")
    return benchmark, {
        name: Declared(one["title"], one.get("higher_is_leak", True)) for name, one in attacks.items()
    }


def _curves(file: Path, rows: Rows) -> tuple[RelearningCurve, ...]:
    """All curves; of an attack that has any, one for each model."""
    found: dict[tuple[str, str], RelearningCurve] = {}
    for number, record in enumerate(read_lines(file), start=1):
        if not _is_curve(record, rows):
            raise ValueError(
                f"{file}: record {number} is no curve of {RESULTS}, as evaluate attack writes it"
            )
        attack, model = record["attack"], record["model"]
        steps, scores = tuple(record["steps"]), tuple(record["scores"])
        found[attack, model] = RelearningCurve(attack, model, steps, scores, record.get("half_recovery"))
    for attack in {attack for attack, _ in found}:
        for model in rows[BEFORE]:
            if (attack, model) not in found:
                raise ValueError(f"{file} has no curve of {model} under {attack}")
    return tuple(found.values())


def _is_curve(record: Mapping[str, Any], rows: Rows) -> bool:
    """Whether it has scores at ascending steps from 0 on, each of which is among the rows."""
    steps, scores, half = (record.get(name) for name in ("steps", "scores", "half_recovery"))
    return (
        isinstance(steps, list)
        and isinstance(scores, list)
        and all(type(step) is int for step in steps)
        and all(map(is_finite, [*scores, *([] if half is None else [half])]))
        and len(steps) == len(scores) > 1
        and steps[0] == 0
        and all(earlier < later for earlier, later in pairwise(steps))
        and isinstance(record.get("model"), str)
        and all(record["model"] in rows.get(f"{record.get('attack')}/{step}", {}) for step in steps[1:])
    )


def _series(key: str) -> str:
    return _SERIES.sub("", key) if "/" in key else key


def _number(key: str) -> int:
    found = _SERIES.search(key)
    return int(found[0]) if found else 0
