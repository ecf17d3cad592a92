"""open-unlearning's logs: what is read is checked. Their numbers are in test_score_command and in tasks."""

from __future__ import annotations

import math
from typing import Any

import pytest

from recipe.rerule.evaluation.logs import Log, MissingError


def log(**metrics: dict[str, Any]) -> Log:
    return Log("made.json", {name: {"value_by_index": entries} for name, entries in metrics.items()})


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "value_by_index of m is empty"),
        ({"0": 0.5}, "m, index 0 has no prob"),
        ({"0": {"prob": 1}, "5": {"prob": math.nan}}, "m, index 5: prob is NaN, not a finite number"),
        ({"5": {"prob": [1, -math.inf]}}, "m, index 5: prob is -Infinity, not a finite number"),
        ({"5": {"prob": True}}, "index 5: prob is true, not a finite number"),
        ({"5": {"prob": []}}, "index 5: prob has 0 values"),
        ({"5": {"prob": 37.5}}, r"index 5: prob is 37.5, outside \[0, 1\]"),
        ({"0": {"prob": [1, 1]}, "5": {"prob": 1}}, "index 5: prob has 1 values, where others have 2"),
        ({"0": None, "1": {"prob": None}}, "every prob of m is null"),
    ],
)
def test_bad_values_are_named(entries: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        log(m=entries).numbers("m", "prob", low=0, high=1)


def test_metrics_over_different_samples_and_missing_parts_are_named() -> None:
    one = {"s": 1}
    made = log(a={"0": one, "1": one, "2": None}, b={"2": one, "1": one, "0": {"s": [None]}}, c={"0": one})
    assert made.pair("a", "b", "s", 0, 1) == (["1"], [[1]], [[1]])
    with pytest.raises(ValueError, match="a and c are over different samples: 2 are in one only, as index 1"):
        made.pair("a", "c", "s", 0, 1)
    with pytest.raises(ValueError, match="no sample has values of both d and e"):
        log(d={"0": one, "1": None}, e={"0": None, "1": one}).pair("d", "e", "s", 0, 1)
    with pytest.raises(MissingError, match="no a/holdout"):
        made.numbers("a", "s", "holdout")
