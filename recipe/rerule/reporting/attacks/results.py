"""Folders of `recipe.rerule.evaluate attack`: the tidy table, and what the report shows of its numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.attacks.registry import BEFORE
from recipe.rerule.evaluation.attacks.summary import (
    ATTACKED,
    CONTROL,
    ORIGINAL,
    Curve,
    Declared,
    Results,
    Summary,
)
from recipe.rerule.io import read_json
from recipe.rerule.process import Progress
from recipe.rerule.reporting.evaluations import check_given_once, heading_of

DAMAGED = 0.8
"""Share of the retain recall it is compared with, below which a model's retain recall has fallen."""
_SERIES = re.compile(r"\d+$")
_DECLARED = {"title": str, "higher_is_leak": bool, "statistic": str, "has_before": bool, "curve": bool}


@dataclass(frozen=True)
class AttackResults:
    """One folder.

    Attributes:
        title: of the benchmark, in headings.
        rows: BEFORE among them.
        attacks: what is declared of each attack.
        meta: meta.json.
    """

    folder: Path
    benchmark: str
    title: str
    rows: Results
    attacks: Declared
    curves: Sequence[Curve]
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

        Of relearning that is one step; of other settings that end in a number, such as samples, the last.
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

    def higher_is_leak(self, key: str) -> bool:
        """Whether a higher score of an attack means that more was left."""
        return bool(self.attacks[key.partition("/")[0]]["higher_is_leak"])

    def named(self, key: str) -> tuple[str, str]:
        """The title of an attack, and its setting in words; "" of an attack that has one only."""
        attack, _, setting = key.partition("/")
        if attack in self.curve_attacks:
            setting = f"{setting} steps"
        return str(self.attacks[attack]["title"]), setting.replace("_", " ")

    def label(self, key: str) -> str:
        """An attack and its setting in words."""
        return ": ".join(filter(None, self.named(key)))


def has_fallen(retain: float | None, compared: float | None) -> bool:
    """Whether a retain recall is that far below another; not where one of them was not measured."""
    return retain is not None and compared is not None and retain < DAMAGED * compared


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
    if (folder / "results.json").is_file():
        raise ValueError(f"--attacks {path} is a folder of evaluate model; give it as --results")
    meta = read_json(folder / ATTACKED.marker)
    benchmark, attacks = _declared(meta, folder / ATTACKED.marker)
    rows, file = tidy.read(folder), folder / tidy.FILE
    _check(rows, attacks, file)
    try:
        with Progress("attacks: intervals and paired tests"):
            summary = Summary(rows, {name: attacks[name] for name in dict.fromkeys(rows["attack"])})
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    title = heading_of(benchmark, own_title)
    return AttackResults(folder, benchmark, title, summary.results, attacks, summary.curves, meta)


def _declared(meta: Any, file: Path) -> tuple[str, Declared]:
    """The benchmark and the attacks of meta.json. Raises ValueError."""
    benchmark = meta.get("benchmark") if isinstance(meta, dict) else None
    attacks = meta.get("attacks") if isinstance(meta, dict) else None
    # Files of the report are named after the benchmark.
    if not isinstance(benchmark, str) or not re.fullmatch(r"\w{1,60}", benchmark):
        raise ValueError(f"{file} names no benchmark; it is not as evaluate attack writes it")
    if not isinstance(attacks, dict):
        raise ValueError(f"{file} has no attacks; it is not as evaluate attack writes it")
    for name, one in attacks.items():
        for field, kind in _DECLARED.items():
            if not (isinstance(one, dict) and isinstance(one.get(field), kind)):
                raise ValueError(f"{file}: {field} of the attack {name} is missing or no {kind.__name__}")
        if one["statistic"] not in ("mean", "auc"):
            raise ValueError(f"{file}: statistic of the attack {name} is neither mean nor auc")
    return benchmark, attacks


def _check(rows: pd.DataFrame, attacks: Declared, file: Path) -> None:
    """Refuse a table that `evaluate attack` cannot have written. Raises ValueError."""
    for column in ("attack", "setting", "score", "refused"):
        if column not in rows.columns:
            raise ValueError(f"{file} has no column {column}, which evaluate attack writes")
    if BEFORE not in set(rows["attack"]):
        raise ValueError(f"{file} has no scores without an attack ({BEFORE}), which evaluate attack writes")
    for attack, of_attack in rows.groupby("attack", sort=False):
        if attack not in attacks:
            raise ValueError(f"{file.with_name(ATTACKED.marker)} does not say what the attack {attack} is")
        values = of_attack["score"]
        where = f"{file}: a score of the attack {attack}"
        if not pd.api.types.is_numeric_dtype(values) or np.isinf(values).any():
            raise ValueError(f"{where} is no number")
        if attacks[attack]["has_before"] and not values.dropna().between(0, 1).all():
            raise ValueError(f"{where} is outside 0 to 1; evaluate attack gives fractions of 1, not per cent")
        steps = of_attack["setting"].astype(str)
        if attacks[attack]["curve"] and not steps.str.fullmatch(r"[1-9]\d*").all():
            raise ValueError(f"{file}: a setting of the attack {attack} is no step")


def _series(key: str) -> str:
    return _SERIES.sub("", key) if "/" in key else key


def _number(key: str) -> int:
    found = _SERIES.search(key)
    return int(found[0]) if found else 0
