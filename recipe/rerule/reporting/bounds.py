"""Between what a metric lies: a number outside was given in per cent, or belongs to another metric."""

from __future__ import annotations

import re

_FRACTIONS = re.compile(
    r"(target/.*/)?(forget|retain)/(fb|qa|aa|all|all_pooled)(/.*)?"  # RWKU
    r"|.*/(recall|refusal_rate)|.*_refusal_rate"
    r"|(knowmem|verbmem)_[fr]|.*_ROUGE"
    r"|.*_Prob|.*_Prob_normalised|.*_[Tt]ruth_[Rr]atio|model_utility|forget_quality"
)
_SCORES = "naturalness"


def bounds(metric: str, benchmark: str = "") -> tuple[float, float] | None:
    """Least and greatest value of a metric; None where it has no bounds, as log-likelihoods have none."""
    if benchmark.startswith(_SCORES):
        return 0.0, 100.0
    return (0.0, 1.0) if _FRACTIONS.fullmatch(metric) else None
