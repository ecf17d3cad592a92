"""Which method is better on a number, and which methods no other one beats."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from benchmarks.scoreboard.plan import LEVEL, Axis
from benchmarks.scoreboard.results import Results
from benchmarks.study.pooled import student_interval

FEWEST = 2
"""Worlds that a paired interval needs."""


def difference(found: Results, one: str, other: str, axis: Axis) -> tuple[float, float, float] | None:
    """Mean over the worlds that both have of one's number less the other's, and its Student interval.

    None where both have fewer than two worlds.
    """
    ours, theirs = found.values(one, axis), found.values(other, axis)
    values = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if len(values) < FEWEST:
        return None
    return mean(values), *student_interval(values, LEVEL)


def is_better(found: Results, one: str, other: str, axis: Axis) -> bool:
    """Whether the paired interval excludes 0 on the side that is better."""
    measured = difference(found, one, other, axis)
    if measured is None:
        return False
    _, low, high = measured
    return high < 0 if axis.aim == "low" else low > 0


def beats(found: Results, one: str, other: str, front: Sequence[Axis]) -> bool:
    """Whether one is better on a number of the front, and the other is better on none."""
    return any(is_better(found, one, other, axis) for axis in front) and not any(
        is_better(found, other, one, axis) for axis in front
    )


def beaten_by(found: Results, method: str, among: Sequence[str], front: Sequence[Axis]) -> list[str]:
    """The methods that beat this one; [] where it is on the front."""
    return [other for other in among if other != method and beats(found, other, method, front)]
