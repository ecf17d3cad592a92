"""Costs of a run against those of RULE's run, and scores at a share of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import numpy as np

from benchmarks.study.planned.runs import PlannedRun


def mean_share(pairs: Sequence[tuple[PlannedRun, PlannedRun]], cost: str) -> float | None:
    """Mean share of the second run's cost; seconds of different loops are not compared."""
    shares = [
        run.final[cost] / rule.final[cost]
        for run, rule in pairs
        if cost != "cpu_seconds" or run.settings.get("loop") == rule.settings.get("loop")
    ]
    return mean(shares) if shares else None


def score_at(run: PlannedRun, cost: str, spent: float) -> float | None:
    """Mean score on the way once so much of `cost` was spent, between validations; None outside of them."""
    places = run.curves[f"at/{cost}"]
    # A run ends with the step that exceeds its budget, or a little before a share of another run's.
    if not places[0] * 0.9 <= spent <= places[-1] * 1.02:
        return None
    return float(np.interp(spent, places, run.scores))
