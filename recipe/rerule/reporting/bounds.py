"""Between what a metric lies: a number outside was given in per cent, or belongs to another metric."""

from __future__ import annotations

import re

from recipe.rerule.evaluation.registry import benchmarks

_SCORES = "naturalness"


def bounds(metric: str, benchmark: str = "") -> tuple[float, float] | None:
    """Least and greatest value of a metric; None where it has no bounds, as log-likelihoods have none.

    A metric that any benchmark declares as a fraction lies between 0 and 1.
    """
    if benchmark.startswith(_SCORES):
        return 0.0, 100.0
    return (0.0, 1.0) if _is_fraction(metric) else None


def _is_fraction(metric: str) -> bool:
    return any(re.fullmatch(one.fractions, metric) for one in benchmarks().values() if one.fractions)
