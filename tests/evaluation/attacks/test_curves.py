from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.rerule.evaluation.attacks.curves import area, half_recovery

STEPS = [0, 1, 3, 7, 15]  # log2(1 + step) is 0, 1, 2, 3, 4


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.0, 0.0, 0.5, 0.9, 1.0], 3.0),
        ([0.6, 0.9, 1.0, 1.0, 1.0], 0.0),
        ([0.0, 0.0, 0.2, 0.8, 1.0], 2**2.5 - 1),  # half-way between 2 and 3 on the axis
        ([0.0, 0.4, 0.44, 0.48, 0.49], None),
        ([0.0, 1.0, 0.0, 0.0, 0.0], 2**0.5 - 1),  # the first time counts
    ],
)
def test_half_recovery_by_hand(shares: list[float], expected: float | None) -> None:
    found = half_recovery(STEPS, shares)
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-12))


def test_area_by_hand() -> None:
    """Over 0 to 4: trapezoids .5, 1, .5, 0."""
    assert area(STEPS, [0.0, 1.0, 1.0, 0.0, 0.0]) == pytest.approx(2 / 4, abs=1e-12)
    assert area([0, 3], [0.0, 1.0]) == 0.5


@given(st.floats(-1, 1), st.lists(st.integers(0, 200), min_size=2, unique=True).map(sorted))
def test_a_constant_curve_has_its_value_as_area(value: float, steps: list[int]) -> None:
    assert area(steps, [value] * len(steps)) == pytest.approx(value, abs=1e-12)


def test_a_straight_curve_is_measured_alike_with_more_steps() -> None:
    steps = list(range(65))
    line = [math.log2(1 + step) / 6.1 for step in steps]
    few = [0, 1, 2, 4, 8, 16, 32, 64]
    assert area(few, [line[step] for step in few]) == pytest.approx(area(steps, line), abs=1e-12)
    found = half_recovery(few, [line[step] for step in few])
    assert found == pytest.approx(2**3.05 - 1, abs=1e-9)


@pytest.mark.parametrize("function", [area, half_recovery])
@pytest.mark.parametrize(
    ("steps", "values", "message"),
    [
        ([], [], "0 steps and 0 values"),
        ([0, 1], [0.5], "2 steps and 1 values"),
        ([0, 4, 2], [0.0, 0.1, 0.2], "not ascending"),
        ([-1, 4], [0.0, 0.1], "not ascending"),
    ],
)
def test_what_is_refused(
    function: Callable[..., Any], steps: list[int], values: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        function(steps, values)


def test_one_step_has_no_area() -> None:
    with pytest.raises(ValueError, match="give at least 2 steps"):
        area([3], [0.5])
