"""Means, intervals and paired tests over facts: against scipy, and against plain enumerations in loops."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap as scipy_bootstrap
from scipy.stats import hmean
from scipy.stats import permutation_test as scipy_test

from recipe.rerule.evaluation import summary
from recipe.rerule.evaluation.summary import Array, Facts, Samples, Statistic, intervals, mean_of

FACTS: Facts = {"qa": ["x", "y", "x", "z", "x"], "fb": ["z", "y", "y"]}
"""Three facts over two sets: x is asked 3 and 0 times, y 1 and 2 times, z once in each."""
BOTH = ["qa", "fb"]
MEAN = {"mean": mean_of("x", ["set"])}


def one_set(*values: float) -> Samples:
    return {"set": {"x": np.array(values, dtype=float)}}


def made(seed: int) -> Samples:
    generator = np.random.default_rng(seed)
    return {name: {q: generator.random(len(asked)) for q in "vw"} for name, asked in FACTS.items()}


# Facts are resampled, and exchanged, with all of their probes.


def plain(values: Samples, drawn: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """The samples of a draw of facts: for each drawn fact its probes, in loops."""
    return {
        name: {q: [values[name][q][i] for f in drawn for i, g in enumerate(asked) if g == f] for q in "vw"}
        for name, asked in FACTS.items()
    }


class AllDraws:
    """In place of random numbers: each of the 27 draws of three facts once."""

    def __init__(self) -> None:
        self.rows = iter(list(product(range(3), repeat=3)))

    def integers(self, facts: int, size: tuple[int, int]) -> Array:
        return np.array([next(self.rows) for _ in range(size[0])])


REFERENCES: dict[str, tuple[Statistic, Callable[[dict[str, Any]], float], str]] = {
    "pooled": (mean_of("v", BOTH), lambda s: np.mean([*s["qa"]["v"], *s["fb"]["v"]]), "zyx"),
    "one set": (
        lambda s: hmean([mean_of(quantity, ["qa"])(s) for quantity in "vw"]),
        lambda s: hmean([np.mean(s["qa"]["v"]), np.mean(s["qa"]["w"])]),
        "xyz",
    ),
}
"""Statistic, the same in plain words, and the facts as they are numbered: by the sets' names."""


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("most", [60, 10**6], ids=["in blocks", "all at once"])
def test_every_resample_holds_the_drawn_facts_with_all_their_probes(monkeypatch, name, most):
    values, (statistic, reference, order) = made(0), REFERENCES[name]
    monkeypatch.setattr(summary, "_stream", lambda name: AllDraws())
    monkeypatch.setattr(summary, "RESAMPLES", 27)
    monkeypatch.setattr(summary, "MOST_VALUES", most)
    found = summary.bootstrap(values, {"metric": statistic}, FACTS)["metric"]
    expected = [reference(values), *(reference(plain(values, draw)) for draw in product(order, repeat=3))]
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def exchanged(a: Samples, b: Samples, swapped: set[str]) -> Samples:
    mask = {name: [fact in swapped for fact in asked] for name, asked in FACTS.items()}
    return {name: {q: np.where(mask[name], b[name][q], a[name][q]) for q in "vw"} for name in FACTS}


@pytest.mark.parametrize("name", REFERENCES)
def test_the_exact_p_value_is_that_of_all_exchanges_of_facts(name: str, monkeypatch: Any) -> None:
    a, b, statistic = made(6), made(7), REFERENCES[name][0]
    differences = []
    for signs in product([False, True], repeat=3):
        swapped = {fact for fact, sign in zip("xyz", signs, strict=True) if sign}
        there, back = exchanged(a, b, swapped), exchanged(b, a, swapped)
        differences.append(abs(float(statistic(there) - statistic(back))))
    expected = np.mean(np.array(differences) >= differences[0] - 1e-12)
    assert summary.permutation_test(a, b, {"m": statistic}, FACTS)["m"] == expected
    monkeypatch.setattr(summary, "PERMUTATIONS", 7)
    drawn = summary.permutation_test(a, b, {"m": statistic}, FACTS)["m"]  # one more counts: of 7 + 1
    assert drawn * 8 == int(drawn * 8)


def test_other_metrics_and_sets_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, facts = made(4), made(5), {**FACTS, "aa": ["x", "q"]}
    more = [{**samples, "aa": {q: np.arange(2.0) for q in "vw"}} for samples in (a, b)]
    one = {"pooled": mean_of("v", BOTH)}
    every = {"qa": mean_of("v", ["qa"]), "all": mean_of("w", [*BOTH, "aa"]), **one}
    assert intervals(more[0], every, facts=facts)["pooled"] == intervals(a, one, facts=FACTS)["pooled"]
    for permutations in (7, 9999):
        monkeypatch.setattr(summary, "PERMUTATIONS", permutations)
        found = summary.permutation_test(*more, every, facts)["pooled"]
        assert found == summary.permutation_test(a, b, one, FACTS)["pooled"]


def test_sets_are_drawn_apart_unless_they_are_joined_by_facts_through_others() -> None:
    facts = {"a": [1, 2], "b": [3, 4], "c": [2, 3], "d": [5]}
    samples = {name: {"v": np.zeros(len(asked))} for name, asked in facts.items()}
    assert [one.name for one in summary.strata(samples, facts)] == ["a\nb\nc", "d"]
    constant = {"zeros": {"x": np.zeros(9)}, "ones": {"x": np.ones(3)}}
    statistics = {"all": mean_of("x", list(constant)), "sets": summary.mean_of_means("x", list(constant))}
    assert intervals(constant, statistics) == {"all": (0.25, 0.25), "sets": (0.5, 0.5)}
    values = np.random.default_rng(4).random(40)
    found = intervals({"a": {"x": values}, "b": {"x": values}}, {n: mean_of("x", [n]) for n in "ab"})
    assert found["a"] != found["b"]  # and not by the same random numbers


def test_the_interval_of_a_difference_is_scipys_of_the_paired_differences(monkeypatch) -> None:
    """Two models that move together: the difference is known far better than either."""
    generator = np.random.default_rng(0)
    second = generator.random(200)
    first = second + generator.normal(0.02, 0.05, 200)
    options = {"method": "percentile", "n_resamples": 10000, "rng": np.random.default_rng(1)}
    theirs = scipy_bootstrap((first - second,), np.mean, **options).confidence_interval
    monkeypatch.setattr(summary, "RESAMPLES", 10000)
    found = summary.compare(one_set(*first), one_set(*second), MEAN)["mean"]
    assert (found["low"], found["high"]) == pytest.approx((theirs.low, theirs.high), abs=0.001)
    assert found["difference"] == pytest.approx((first - second).mean())


def p_value(first: Any, second: Any) -> float:
    return summary.permutation_test(one_set(*first), one_set(*second), MEAN)["mean"]


def test_p_values_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The differences are 3, 1 and -1, their sum 3; six of the eight ways to set the signs reach it."""
    assert p_value([3, 1, 0], [0, 0, 1]) == 6 / 8
    # Probes without a difference do not stand in the way of counting.
    assert p_value([1.0] * 8 + [0.5] * 5000, [0.0] * 8 + [0.5] * 5000) == 2 / 2**8
    monkeypatch.setattr(summary, "PERMUTATIONS", 99)
    assert p_value(np.ones(100), np.zeros(100)) == 1 / 100  # never 0


def test_drawn_p_values_agree_with_scipy_in_blocks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    first, second = generator.random(200), generator.random(200) + 3 / 200
    options = {"permutation_type": "samples", "n_resamples": 9999, "rng": np.random.default_rng(0)}
    theirs = scipy_test((first, second), lambda x, y, axis: np.mean(x - y, axis=axis), **options).pvalue
    found = p_value(first, second)
    assert found == pytest.approx(theirs, abs=0.015)
    assert p_value(second, first) == found
    monkeypatch.setattr(summary, "MOST_VALUES", 10**5)
    assert p_value(first, second) == found


def test_every_pair_is_compared_and_corrected_together() -> None:
    """Eight probes on which a and c differ, all one way: p = 2/256, and there are three tests."""
    models = {"a": one_set(*[1] * 8), "b": one_set(*[1] * 8), "c": one_set(*[0] * 8)}
    records = summary.compare_all(models, MEAN)
    assert [(one["a"], one["b"]) for one in records] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [one["p_holm"] for one in records] == [1, 6 / 256, 6 / 256]
    assert records[1] == {
        "a": "a", "b": "c", "metric": "mean", "difference": 1, "low": 1, "high": 1, "probes": 8, "facts": 8,
        "p_value": 2 / 256, "p_holm": 6 / 256, "unit": "fact", "test": summary.TEST,
    }  # fmt: skip
    with pytest.raises(ValueError, match="models a and d: set set is of other probes: only answers to the"):
        summary.compare_all({"a": one_set(1, 2, 3), "d": one_set(1, 2)}, MEAN)
    # A quantity that one model lacks is in no metric of both.
    lacking = {"a": {"set": {**one_set(1, 0)["set"], "y": np.ones(2)}}, "c": one_set(0, 0)}
    assert [one["difference"] for one in summary.compare_all(lacking, MEAN)] == [0.5]
    # By hand: 0.01 * 4, 0.02 * 3, 0.03 * 2 raised to 0.06, 0.04 * 1 raised to 0.06.
    assert summary.holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
