"""Small evaluations and runs, made without files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipe.rerule.reporting.evaluations import Comparison, Evaluation
from recipe.rerule.runs.history import Run


def evaluation(**changes: Any) -> Evaluation:
    fields: dict[str, Any] = {
        "benchmark": "rwku",
        "target": "Ada",
        "folders": (Path("a"),),
        "probes_key": "a",
        "convention": "rwku",
        "results": {
            "base": {"forget/all": 0.75, "retain/all": 0.875},
            "rule": {"forget/all": 0.25, "retain/all": 0.5, "forget/fb": 0.125},
        },
        "anchors": {"always refuses": {"forget/all": 0.126}},
    }
    return Evaluation(**(fields | changes))


def comparison(a: str, b: str, metric: str, difference: float, half: float, p: float) -> Comparison:
    return Comparison(
        a=a,
        b=b,
        metric=metric,
        difference=difference,
        low=difference - half,
        high=difference + half,
        p_value=p,
        probes=10,
        test="paired",
    )


def run_of(name: str, metrics: list[dict[str, float]], **changes: Any) -> Run:
    return Run(name, tuple(range(1, len(metrics) + 1)), tuple(metrics), {}, **changes)
