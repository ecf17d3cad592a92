"""What folders of `evaluate attack` say, with values written by hand."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from recipe.rerule.evaluation.attacks.summary import Numbers, Results
from recipe.rerule.reporting.attacks import AttackResults, Declared

TITLES = {
    "none": "no attack",
    "prefill": "prefill",
    "samples": "samples",
    "uds": "depth (UDS)",
    "quantise_4": "4 bits",
    "relearn_forget_half": "relearn: half",
    "mine": "my attack",
}
RELEARN = "relearn_forget_half"
DECLARED: dict[str, dict[str, Any]] = {
    name: {"title": title, "higher_is_leak": name != "uds", "curve": name == RELEARN}
    for name, title in TITLES.items()
}
DECLARED[RELEARN]["trained_on"] = "on the answers to other facts"
META = {"benchmark": "world", "attacks": DECLARED, "command": "python -m recipe.rerule.evaluate attack"}


def row(after: float, before: float | None = 0.05, **others: Any) -> Numbers:
    """The numbers of a model; `with_excess` adds E."""
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


def with_excess(rows: Results) -> Results:
    """The rows with E, where there is a control."""
    found: Results = {}
    for key, of_models in rows.items():
        floor = of_models.get("control")
        found[key] = {
            name: replace(one, excess=one.after - floor.after) if floor else replace(one, interval=None)
            for name, one in of_models.items()
        }
    return found


def results(rows: Results | None = None, **changes: dict[str, Any]) -> AttackResults:
    """The results of a folder with these rows; `changes` of what is declared of attacks."""
    declared = {name: Declared(**one) for name, one in (DECLARED | changes).items()}
    numbers = with_excess(usual() if rows is None else rows)
    return AttackResults("world", "Embedded world", numbers, declared, META)


def files(folder: str, rows: Any = None, **meta: Any) -> dict[str, str]:
    """The files of a folder with these rows, by default `usual`, and META with changes."""
    given = with_excess(usual()) if rows is None else rows
    told = {key: {name: asdict(one) for name, one in of_models.items()} for key, of_models in given.items()}
    contents = {"attacks.json": told, "meta.json": META | meta}
    return {f"{folder}/{name}": json.dumps(content) for name, content in contents.items()}


def with_numbers(rows: Results, key: str, model: str, **changes: Any) -> Results:
    """The rows with other numbers in one of them."""
    return {**rows, key: {**rows[key], model: replace(rows[key][model], **changes)}}


def only(rows: Mapping[str, Mapping[str, Numbers]], names: Sequence[str]) -> Results:
    return {key: {name: one[name] for name in names} for key, one in rows.items()}
