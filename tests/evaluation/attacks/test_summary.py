"""Numbers over facts from tidy rows: what is averaged, when there is an interval or a share, and curves."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from recipe.rerule.evaluation import metrics as roc
from recipe.rerule.evaluation.attacks import summary
from recipe.rerule.evaluation.attacks.attack import FORGET, row
from recipe.rerule.evaluation.attacks.summary import auc, drawn, half_recovery, share
from recipe.rerule.evaluation.summary import Array, Samples, bootstrap, interval_of, intervals, mean_of

MEAN = mean_of("score", [FORGET])
NONE = {"title": "", "higher_is_leak": True, "statistic": "mean", "has_before": True, "curve": False}


def over(values: list[float] | Array) -> Samples:
    return {FORGET: {"score": np.asarray(values, dtype=float)}}


def between(a: list[float] | Array, b: list[float] | Array) -> Array:
    return drawn(over(a), MEAN) - drawn(over(b), MEAN)


def table(*rows: dict[str, Any]) -> pd.DataFrame:
    made = [{"attack": "none", "model": "mine", **row(**one)} for one in rows]
    return pd.DataFrame(made).astype({"score": float, "refused": float})


def of_model(name: str, scores: dict[int, float]) -> pd.DataFrame:
    """A probe of each fact, in the order of the scores."""
    rows = ({"fact": f"fact {n}", "probe": n, "score": score} for n, score in scores.items())
    return table(*rows).assign(model=name)


def test_samples_are_averaged_first_then_the_probes_of_a_fact():
    """Fact a has three probes, of which one was sampled twice, and b one: 0.5 and 1, not 2.5 of 5."""
    rows = table(
        {"fact": "a", "probe": 0, "score": 1.0, "refused": 0.0},
        {"fact": "b", "probe": 10, "score": 1.0, "refused": 1.0},
        {"fact": "a", "probe": 1, "score": 0.25, "sample": 0},
        {"fact": "a", "probe": 1, "score": 0.75, "sample": 1},
        {"fact": "a", "probe": 2, "score": 0.0},
        {"side": "retain", "fact": "c", "probe": 40, "score": 0.25, "refused": 1.0},
    )
    found = summary.summary(rows, {"none": NONE})["none"]["mine"]
    assert (found.before, found.after, found.gain, found.facts) == (0.75, 0.75, 0, 2)
    assert (found.refusal, found.retain, found.excess, found.after_interval) == (0.5, 0.25, None, None)


def test_models_are_compared_over_the_same_facts_in_one_order():
    mine, control = {n: n / 14 + 0.5 for n in range(8)}, {n: n / 14 for n in reversed(range(8))}
    rows = pd.concat([of_model("mine", mine), of_model("control", control)])
    found = summary.summary(rows, {"none": NONE})["none"]
    assert (found["mine"].excess, found["mine"].interval) == (pytest.approx(0.5), pytest.approx((0.5, 0.5)))
    assert found["control"].p_value == 1
    with pytest.raises(ValueError, match="attack none scored other facts of control than of mine"):
        summary.summary(rows[:-1], {"none": NONE})


@pytest.mark.parametrize(
    ("a", "b", "p_value"),
    [
        ([1, 1, 1, 0.5, 1, 1], [0] * 6, 2 / 64),  # all differ one way: of 2^6 exchanges, two are as extreme
        ([1, 0, 1, 0, 1, 0], [1, 0, 1, 0, 1, 0], 1),
        ([1] * 5, [0] * 5, None),  # too few
    ],
)
def test_the_excess_of_a_few_facts(a, b, p_value):
    rows = pd.concat([of_model("mine", dict(enumerate(a))), of_model("control", dict(enumerate(b)))])
    found = summary.summary(rows, {"none": NONE})["none"]["mine"]
    mean = np.mean(a) - np.mean(b)
    assert (found.excess, found.p_value) == (pytest.approx(mean), p_value)
    assert (found.interval is None) == (found.after_interval is None) == (p_value is None)
    low, high = found.interval or (mean, mean)
    assert low <= mean <= high <= 1
    assert (low < mean) == (p_value == 2 / 64)


@pytest.mark.parametrize(("facts", "verdict"), [(3, "open"), (5, "open"), (6, "above")])
def test_a_leak_needs_the_exact_test_too(facts, verdict):
    """The interval leaves 0 out from 3 of 10 facts on, of whose 2^3 exchanges two are as extreme."""
    a = {number: float(number < facts) for number in range(10)}
    rows = pd.concat([of_model("mine", a), of_model("control", dict.fromkeys(a, 0.0))])
    found = summary.summary(rows, {"none": NONE})["none"]["mine"]
    assert found.interval[0] > 0
    assert found.p_value == 2 / 2**facts
    assert found.verdict() == verdict


def test_scores_of_another_kind_are_not_compared_with_those_before():
    parts = [
        of_model("mine", dict.fromkeys(range(6), 0.5)).assign(attack=a, setting=s)
        for a, s in (("none", ""), ("samples", "max_4"), ("samples", "leak_4"))
    ]
    declared = {"none": NONE, "samples": {**NONE, "has_before": "max_"}}
    found = summary.summary(pd.concat(parts), declared)
    assert found["samples/max_4"]["mine"].gain == 0
    assert found["samples/leak_4"]["mine"].gain is None


def test_a_share_needs_knowledge_that_is_sure():
    whole, nothing, half = (between([value] * 8, [0] * 8) for value in (1, 0, 0.5))
    assert share(half, whole) == (0.5, (0.5, 0.5))
    assert share(nothing, whole) == (0, (0, 0))
    # The original's excess may be 0: a share of it has no meaning.
    assert share(half, between([1, 0, 0, 0, 0, 0, 0, 0], [0] * 8)) == (None, None)
    assert share(half, nothing) == (None, None)
    generator = np.random.default_rng(3)
    unsure = between(generator.random(8), generator.random(8))  # around 0, which no resample is
    assert share(half, unsure) == (None, None)
    assert share(between([1] * 5, [0] * 5), between([1] * 5, [0] * 5)) == (None, None)


def test_the_interval_of_a_share_is_that_of_paired_resamples():
    generator = np.random.default_rng(0)
    u, o = generator.random((2, 30))
    found = share(between(u, np.zeros(30)), between(o, np.zeros(30)))
    draws = [bootstrap(over(values), {"m": MEAN})["m"][1:] for values in (u, o)]
    ends = tuple(np.quantile(draws[0] - draws[1], [0.025, 0.975]))
    assert interval_of(between(u, o)) == pytest.approx(ends)
    assert found[0] == pytest.approx(u.mean() / o.mean())
    assert found[1] == pytest.approx(tuple(np.quantile(draws[0] / draws[1], [0.025, 0.975])))


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
def test_half_recovery_by_hand(shares, expected):
    """At steps whose log2(1 + step) is 0, 1, 2, 3 and 4."""
    found = half_recovery([0, 1, 3, 7, 15], shares)
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-12))


def of_sets(low: Array, high: Array) -> Samples:
    return {"forget": {"score": low}, "others": {"score": high}}


def test_the_auc_of_every_resample_with_ties():
    generator = np.random.default_rng(0)
    low, high = (generator.integers(0, 3, size=(7, size)).astype(float) for size in (9, 5))
    assert auc(of_sets(low, low)).tolist() == [0.5] * 7
    expected = [roc.auc(*pair) for pair in zip(low, high, strict=True)]
    assert auc(of_sets(low, high)) == pytest.approx(expected, abs=1e-15)
    bottom, top = intervals(of_sets(low[0], high[0]), {"auc": auc})["auc"]
    assert 0 <= bottom <= expected[0] <= top <= 1
