"""Costs of a run against those of RULE's run, and scores at a share of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import numpy as np

from benchmarks.study.planned.runs import PlannedRun

Pairs = Sequence[tuple[PlannedRun, PlannedRun]]
"""Runs, each with RULE's run of the same start."""


def mean_share(pairs: Pairs, cost: str) -> float | None:
    """Mean share of what RULE's run has cost; seconds of different loops are not compared."""
    shares = [
        run.final[cost] / rule.final[cost]
        for run, rule in pairs
        if cost != "cpu_seconds" or run.settings.get("loop") == rule.settings.get("loop")
    ]
    return mean(shares) if shares else None


def mean_score_at(pairs: Pairs, cost: str, part: float) -> float | None:
    """Mean score at a part of what RULE's run has cost; None where a run has none there."""
    values = [score_at(run, cost, part * rule.final[cost]) for run, rule in pairs]
    known = [value for value in values if value is not None]
    return mean(known) if len(known) == len(values) else None


def score_at(run: PlannedRun, cost: str, spent: float) -> float | None:
    """Mean score on the way once so much of `cost` was spent, between validations; None outside of them."""
    places = run.curves[f"at/{cost}"]
    # A run ends with the step that exceeds its budget, or a little before a share of another run's.
    if not places[0] * 0.9 <= spent <= places[-1] * 1.02:
        return None
    return float(np.interp(spent, places, run.scores))
