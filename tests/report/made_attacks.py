"""What folders of `evaluate attack` say, with values written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.attacks.summary import Curve, Numbers, Results
from recipe.rerule.reporting.attacks import AttackResults

TITLES = {
    "none": "no attack",
    "prefill": "prefill",
    "samples": "samples",
    "uds": "depth (UDS)",
    "quantise_4": "4 bits",
    "relearn_forget_half": "relearn: half",
    "mine": "my attack",
}
STEPS = (8, 32)
RELEARN = "relearn_forget_half"
DECLARED = {
    name: {
        "title": title,
        "higher_is_leak": name != "uds",
        "statistic": "mean",
        "has_before": True,
        "curve": name.startswith("relearn"),
    }
    for name, title in TITLES.items()
}
META = {"benchmark": "world", "attacks": DECLARED, "command": "python -m recipe.rerule.evaluate attack"}
KNOWN = {
    ("none", ""): {"original": 39, "rerule": 2, "control": 1},
    ("prefill", "affirmative"): {"original": 39, "rerule": 2, "control": 1},
    (RELEARN, "8"): {"original": 39, "rerule": 16, "control": 1},
    (RELEARN, "32"): {"original": 39, "rerule": 24, "control": 2},
}
"""How many of 40 facts a model gives, by attack and setting."""


def row(after: float, before: float | None = 0.05, **others: Any) -> Numbers:
    """The numbers of a model; `results` adds the excess."""
    usual = {"before": before, "after": after, "refusal": 0.95, "retain": 0.9, "facts": 40}
    return Numbers(**{**dict.fromkeys(Numbers.__dataclass_fields__), **usual, **others})


def usual() -> Results:
    """An unlearned model that refuses; relearning brings back 0.56, prefilling nothing."""
    return {
        "none": {"original": row(0.98, 0.98), "rerule": row(0.05), "control": row(0.03, 0.03)},
        "prefill/affirmative": {
            "original": row(0.97, 0.98),
            "rerule": row(0.06, interval=(-0.02, 0.1), p_value=0.3, p_holm=0.6),
            "control": row(0.02, 0.03),
        },
        f"{RELEARN}/8": {"original": row(0.98, 0.98), "rerule": row(0.4), "control": row(0.03, 0.03)},
        f"{RELEARN}/32": {
            "original": row(0.98, 0.98),
            "rerule": row(0.6, interval=(0.4, 0.7), p_value=0.0005, p_holm=0.001),
            "control": row(0.04, 0.03),
        },
    }


SCORES = {
    "original": (0.98, 0.98, 0.98),
    "rerule": (0.05, 0.4, 0.6),
    "control": (0.03, 0.03, 0.04),
    "rule": (0.05, 0.1, 0.3),
}
"""Of relearning, before it and after each of STEPS."""


def results(rows: Results | None = None, attack: str | None = RELEARN) -> AttackResults:
    """Curves of `attack` for the models of the rows, and the excess of every row that has a control."""
    given = usual() if rows is None else rows
    with_excess: Results = {}
    for key, of_models in given.items():
        floor = of_models.get("control")
        with_excess[key] = {
            name: replace(one, excess=one.after - floor.after) if floor else replace(one, interval=None)
            for name, one in of_models.items()
        }
    curves = [Curve(attack, name, (0, *STEPS), SCORES[name], (), ()) for name in given["none"] if attack]
    return AttackResults(Path("attacks"), "world", "Embedded world", with_excess, DECLARED, curves, META)


def table() -> pd.DataFrame:
    """A row a probe: of 40 facts those that KNOWN says, and 9 of 10 retained ones."""
    return pd.DataFrame(
        {
            "model": model, "probe": number, "side": side, "kind": "qa", "fact": f"fact {number}",
            "sample": 0, "prompt": "Where?", "response": "There.", "attack": attack, "setting": setting,
            "score": float(number < known), "refused": float(number >= known),
        }
        for (attack, setting), of_models in KNOWN.items()
        for model, forget in of_models.items()
        for side, known, first, count in (("forget", forget, 0, 40), ("retain", 49, 40, 10))
        for number in range(first, first + count)
    )  # fmt: skip


def write(folder: Path, rows: pd.DataFrame | None = None, **meta: Any) -> Path:
    """The folder of a table, by default `table`, and META with changes."""
    folder.mkdir(parents=True)
    tidy.write(folder, table() if rows is None else rows)
    (folder / "attacks.json").write_text("{}")
    (folder / "meta.json").write_text(json.dumps({**META, **meta}))
    return folder


def changed(rows: Results, key: str, model: str, **changes: Any) -> Results:
    """The rows with other numbers in one of them."""
    return {**rows, key: {**rows[key], model: replace(rows[key][model], **changes)}}


def only(rows: Mapping[str, Mapping[str, Numbers]], names: Sequence[str]) -> Results:
    return {key: {name: one[name] for name in names} for key, one in rows.items()}
