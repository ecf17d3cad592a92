"""Two numbers of a relearning curve, over log2(1 + step): how soon half comes back, and how much in all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

HALF = 0.5


def half_recovery(steps: Sequence[int], shares: Sequence[float]) -> float | None:
    """The first step at which at least half of the knowledge is back; None where no step of the curve has it.

    Between two steps the share is interpolated linearly in log2(1 + step).

    Args:
        steps: ascending, from 0 on.
        shares: at each step, the excess over the never-knew model by that of the original model.

    Raises:
        ValueError: the two have different lengths, there are none, or the steps are not ascending.
    """
    places = _places(steps, shares)
    reached = next((number for number, share in enumerate(shares) if share >= HALF), None)
    if reached is None:
        return None
    if reached == 0:
        return float(steps[0])
    left, right = shares[reached - 1], shares[reached]
    part = (HALF - left) / (right - left)
    return 2 ** (places[reached - 1] + part * (places[reached] - places[reached - 1])) - 1


def area(steps: Sequence[int], excess: Sequence[float]) -> float:
    """The mean of a curve over log2(1 + step), by trapezoids: a constant curve has its own value.

    Args:
        steps: ascending, from 0 on; at least two.
        excess: E at each step.

    Raises:
        ValueError: as `half_recovery`, or there is only one step.
    """
    places = _places(steps, excess)
    if len(places) < 2:
        raise ValueError("a curve of one step has no area; give at least 2 steps")
    trapezoids = (
        (places[n + 1] - places[n]) * (excess[n] + excess[n + 1]) / 2 for n in range(len(places) - 1)
    )
    return math.fsum(trapezoids) / (places[-1] - places[0])


def _places(steps: Sequence[int], values: Sequence[float]) -> list[float]:
    if not steps or len(steps) != len(values):
        raise ValueError(f"{len(steps)} steps and {len(values)} values make no curve")
    if steps[0] < 0 or any(later <= earlier for earlier, later in pairwise(steps)):
        raise ValueError(f"the steps {list(steps)} are not ascending from 0 on")
    return [math.log2(1 + step) for step in steps]
