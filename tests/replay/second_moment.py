"""The bound of a second-moment truncation, by bisection: slow, and as plain as its definition."""

from __future__ import annotations

import math
from collections.abc import Sequence


def largest_bound(ratios: Sequence[float], limit: float) -> float:
    """The largest c with mean(min(r, c)^2) <= limit, infinity where every c will do."""

    def second_moment(bound: float) -> float:
        return math.fsum(min(r, bound) ** 2 for r in ratios) / len(ratios)

    if second_moment(max(ratios)) <= limit:
        return math.inf
    low, high = 0.0, max(ratios)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if second_moment(middle) <= limit else (low, middle)
    return low
