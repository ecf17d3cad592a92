"""Small evaluations and runs, made without files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from recipe.rerule.reporting.document import Table, cell_of
from recipe.rerule.reporting.evaluations import NUMBERS, TESTS, Evaluation
from recipe.rerule.runs.history import GROUPS, Run

Rows = Mapping[str, Mapping[str, float]]
RESULTS: Rows = {
    "base": {"forget/all": 0.75, "retain/all": 0.875},
    "rule": {"forget/all": 0.25, "retain/all": 0.5, "forget/fb": 0.125},
}
ANCHORS: Rows = {"always refuses": {"forget/all": 0.126}}
NAN = float("nan")


def evaluation(
    results: Rows = RESULTS,
    anchors: Rows = ANCHORS,
    intervals: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
    tests: Any = (),
    **changes: Any,
) -> Evaluation:
    """Of RESULTS and ANCHORS; the fields of Evaluation may differ."""
    numbers = [
        (kind, name, metric, value, *(intervals or {}).get(name, {}).get(metric, (NAN, NAN)))
        for kind, rows in (("model", results), ("anchor", anchors))
        for name, metrics in rows.items()
        for metric, value in metrics.items()
    ]
    frames = pd.DataFrame(numbers, columns=NUMBERS), pd.DataFrame(list(tests), columns=TESTS)
    return replace(Evaluation("rwku", "Ada", (Path("a"),), "a", "rwku", *frames), **changes)


def paired(a: str, b: str, metric: str, difference: float, half: float, p: float, **others: Any) -> dict:
    """A paired test, with an interval of `half` to each side."""
    ends = {"low": difference - half, "high": difference + half}
    usual = {"p_value": p, "probes": 10, "test": "paired"}
    return {"a": a, "b": b, "metric": metric, "difference": difference} | ends | usual | others


def response(model: str, probe: int, text: str, **changes: Any) -> dict[str, Any]:
    """A row of the tidy table."""
    return {
        "model": model, "probe": probe, "side": "forget", "kind": "qa", "fact": f"probe {probe}", "sample": 0,
        "family": "direct", "subject": "Ada Quill", "prompt": f"Question {probe}?", "golds": ["Paris"],
        "response": text, "rouge_l": float(text == "Paris"), "refused": text.startswith("I don't"),
    } | changes  # fmt: skip


def texts(table: Table, kind: str = "model") -> dict[str, list[str]]:
    """The cells of the rows of a kind, as they are shown."""
    rows = [row for row in table.rows if row.kind == kind]
    return {row.name: [cell_of(row, column)[0] for column in table.columns] for row in rows}


def groups_of(prompts: Mapping[tuple[int, str], Mapping[int, Any]]) -> pd.DataFrame:
    """Rollout groups: {(prompt, side): {step: mean reward, or (mean reward, tokens)}}."""
    rows = [
        (index, side, "qa", "Ada", "", step, *(told if isinstance(told, tuple) else (told, NAN)))
        for (index, side), visits in prompts.items()
        for step, told in visits.items()
    ]
    return pd.DataFrame(rows, columns=GROUPS).sort_values("step", kind="stable")


def run_of(name: str, metrics: list[dict[str, float]], **changes: Any) -> Run:
    """At steps 1, 2 and so on; `validations` are {step: what was logged}."""
    of_steps = changes.pop("validations", {})
    validations = pd.DataFrame([*of_steps.values()], index=[*of_steps])
    logged = pd.DataFrame(metrics, index=range(1, len(metrics) + 1))
    return replace(Run(name, logged, groups_of({}), validations=validations), **changes)
