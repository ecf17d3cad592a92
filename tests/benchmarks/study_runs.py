"""Runs with known values for tests of the study's analyses."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.study.runs import StudyRun


def scored_run(
    arm: str,
    seed: int,
    scores: Sequence[float],
    world: str = "many",
    model: str = "a",
    costs: Sequence[float] = (),
) -> StudyRun:
    """A run whose mean score is `scores` at its validations, every second step, and the last at its end.

    All three parts of the score are equal to it. costs: compute up to each of the steps, in tokens.
    """
    curves = {
        "forget/recall": [1 - score for score in scores],
        "retain/recall": list(scores),
        "retain_unseen/recall": list(scores),
        "validated_at": [2.0 * (place + 1) for place in range(len(scores))],
        "compute": list(costs) or [1e6 * (step + 1) for step in range(2 * len(scores))],
    }
    final = {name: curves[name][-1] for name in ("forget/recall", "retain/recall", "retain_unseen/recall")}
    return StudyRun(world, arm, seed, "abc", {}, final | {"compute": curves["compute"][-1]}, curves, model)
