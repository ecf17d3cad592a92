"""Means, intervals and paired tests over facts: against scipy, and against plain enumerations in loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap as scipy_bootstrap
from scipy.stats import hmean
from scipy.stats import permutation_test as scipy_test

from recipe.rerule.evaluation import summary
from recipe.rerule.evaluation.summary import (
    TEST,
    Array,
    Facts,
    Samples,
    Statistic,
    bootstrap,
    compare,
    compare_all,
    few_facts_warning,
    holm,
    intervals,
    mean_of,
    mean_of_means,
    permutation_test,
    samples_of,
    strata,
    with_enough_facts,
)

FACTS: Facts = {"qa": ["x", "y", "x", "z", "x"], "fb": ["z", "y", "y"]}
"""Three facts over two sets: x is asked 3 and 0 times, y 1 and 2 times, z once in each."""
BOTH = ["qa", "fb"]
MEAN = {"mean": mean_of("x", ["set"])}
VALUES = st.lists(st.floats(-100, 100), min_size=1, max_size=12)
PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=7)


def one_set(*values: float) -> Samples:
    return {"set": {"x": np.array(values, dtype=float)}}


def random_sets(**sizes: int) -> Samples:
    generator = np.random.default_rng(5)
    return {name: {"x": generator.random(size)} for name, size in sizes.items()}


def made(seed: int, facts: Facts = FACTS) -> Samples:
    generator = np.random.default_rng(seed)
    return {name: {q: generator.random(len(asked)) for q in "vw"} for name, asked in facts.items()}


# Samples from a table.


def test_samples_hold_the_numbers_that_no_row_of_a_set_lacks() -> None:
    table = pd.DataFrame(
        {
            "side": ["forget", "retain", "forget"],
            "probe": [3, 1, 2],
            "fact": ["a", "a", "b"],
            "recall": [0.5, 1.0, 0.25],
            "loss": [1.0, 2.0, np.nan],
            "response": ["x", "y", "z"],
        }
    )
    samples, facts = samples_of(table, lambda row: [row["side"], "all"])
    assert {name: list(values) for name, values in samples.items()} == {
        "forget": ["recall"],
        "all": ["recall"],
        "retain": ["recall", "loss"],
    }
    assert samples["forget"]["recall"].tolist() == [0.5, 0.25]
    assert facts == {"forget": ["a", "b"], "all": ["a", "a", "b"], "retain": ["a"]}


# Facts.


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


def harmonic(samples: Samples) -> Array:
    return hmean([mean_of(quantity, ["qa"])(samples) for quantity in "vw"])


REFERENCES: dict[str, tuple[Statistic, Callable[[dict[str, Any]], float], str]] = {
    "pooled": (mean_of("v", BOTH), lambda s: np.mean([*s["qa"]["v"], *s["fb"]["v"]]), "zyx"),
    "means": (
        mean_of_means("v", BOTH),
        lambda s: np.mean([np.mean(s[name]["v"]) for name in BOTH if s[name]["v"]]),
        "zyx",
    ),
    "one set": (harmonic, lambda s: hmean([np.mean(s["qa"]["v"]), np.mean(s["qa"]["w"])]), "xyz"),
}
"""Statistic, the same in plain words, and the facts as they are numbered: by the sets' names."""


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("most", [1, 60, 10**6], ids=["one by one", "some", "all at once"])
def test_every_resample_holds_the_drawn_facts_with_all_their_probes(
    monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    values, (statistic, reference, order) = made(0), REFERENCES[name]
    monkeypatch.setattr(summary, "_stream", lambda seed, name: AllDraws())
    monkeypatch.setattr(summary, "MOST_VALUES", most)
    found = bootstrap(values, {"metric": statistic}, 27, 0, FACTS)["metric"]
    expected = [reference(plain(values, draw)) for draw in product(order, repeat=3)]
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    assert len(set(expected)) > 5


def test_a_fact_asked_three_times_alike_is_as_one_probe() -> None:
    once = np.random.default_rng(2).random(30)
    thrice, statistics = {"s": {"v": np.repeat(once, 3)}}, {"mean": mean_of("v", ["s"])}
    low, high = intervals(thrice, statistics, facts={"s": np.repeat(np.arange(30), 3).tolist()})["mean"]
    assert (low, high) == pytest.approx(intervals({"s": {"v": once}}, statistics)["mean"], abs=1e-12)
    narrow = intervals(thrice, statistics)["mean"]
    assert narrow[1] - narrow[0] < 0.7 * (high - low)  # by the square root of 3


def test_sets_that_share_facts_move_together() -> None:
    values = np.random.default_rng(3).random(20)
    samples, facts = {"a": {"v": values}, "b": {"v": values}}, {"a": range(20), "b": range(20)}
    gap = {"gap": lambda s: mean_of("v", ["a"])(s) - mean_of("v", ["b"])(s)}
    assert intervals(samples, gap, facts=facts)["gap"] == pytest.approx((0, 0), abs=1e-12)
    low, high = intervals(samples, gap)["gap"]
    assert low < 0 < high


def test_other_metrics_and_sets_change_nothing() -> None:
    a, b, facts = made(4), made(5), {**FACTS, "aa": ["x", "q"]}
    more = [{**samples, "aa": {q: np.arange(2.0) for q in "vw"}} for samples in (a, b)]
    one = {"pooled": mean_of("v", BOTH)}
    every = {"qa": mean_of("v", ["qa"]), "all": mean_of("w", [*BOTH, "aa"]), **one}
    assert intervals(more[0], every, facts=facts)["pooled"] == intervals(a, one, facts=FACTS)["pooled"]
    for permutations in (7, 9999):
        found = permutation_test(*more, every, permutations, 0, facts)["pooled"]
        assert found == permutation_test(a, b, one, permutations, 0, FACTS)["pooled"]


def test_sets_are_joined_through_others() -> None:
    facts = {"a": [1, 2], "b": [3, 4], "c": [2, 3], "d": [5]}
    samples = {name: {"v": np.zeros(len(asked))} for name, asked in facts.items()}
    assert [one.name for one in strata(samples, facts)] == ["a\nb\nc", "d"]
    apart = {name: samples[name] for name in "abd"}
    assert [one.name for one in strata(apart, facts)] == ["a", "b", "d"]


def test_too_few_facts_have_no_interval_and_are_named() -> None:
    samples = {"few": {"x": np.zeros(5)}, "enough": {"x": np.zeros(6)}}
    statistics = {name: mean_of("x", [name]) for name in samples}
    assert list(with_enough_facts(statistics, samples)) == ["enough"]
    assert few_facts_warning(statistics, samples, ["enough", "unknown"]) is None
    told = few_facts_warning(statistics, samples, ["few", "enough"])
    assert told is not None
    assert told.startswith("fewer than 6 facts, so no interval and no test: few (5);")
    facts = {"few": "abcde", "enough": "aabbcc"}
    assert with_enough_facts(statistics, samples, facts) == {}


# Intervals.


def test_the_mean_of_three_probes_has_the_percentiles_of_all_27_resamples() -> None:
    """The quantiles of the exact distribution, where they fall inside a step of it."""
    means = sorted(np.mean(draw) for draw in product([0.0, 1.0, 4.0], repeat=3))
    assert means[1:4] == [pytest.approx(1 / 3)] * 3  # 0 has the share 1/27, and 1/3 the next 3/27
    found = intervals(one_set(0, 1, 4), MEAN, resamples=20000, level=0.85)["mean"]
    assert found == pytest.approx((1 / 3, 3))


def test_it_agrees_with_scipy_on_a_mean_and_on_a_harmonic_mean_of_sets() -> None:
    samples = random_sets(first=60, second=25, third=40)

    def scipys(sets: Sequence[Array], statistic: Callable[..., Array]) -> tuple[float, float]:
        options = {"method": "percentile", "n_resamples": 20000, "vectorized": True}
        found = scipy_bootstrap(sets, statistic, rng=np.random.default_rng(2), **options)
        return found.confidence_interval.low, found.confidence_interval.high

    ours = {
        "mean": mean_of("x", ["first"]),
        "harmonic": lambda s: hmean([mean_of("x", [name])(s) for name in samples]),
    }
    found = intervals(samples, ours, resamples=20000)
    every = [quantities["x"] for quantities in samples.values()]
    assert found["mean"] == pytest.approx(scipys(every[:1], np.mean), abs=0.003)
    expected = scipys(every, lambda *sets, axis: hmean([one.mean(axis=axis) for one in sets]))
    assert found["harmonic"] == pytest.approx(expected, abs=0.003)


def test_sets_are_resampled_within_themselves_and_not_alike() -> None:
    samples = {"zeros": {"x": np.zeros(9)}, "ones": {"x": np.ones(3)}}
    statistics = {"all": mean_of("x", ["zeros", "ones"]), "sets": mean_of_means("x", ["zeros", "ones"])}
    assert intervals(samples, statistics) == {"all": (0.25, 0.25), "sets": (0.5, 0.5)}
    values = np.random.default_rng(4).random(40)
    same = {"a": {"x": values}, "b": {"x": values}}
    found = intervals(same, {name: mean_of("x", [name]) for name in same})
    assert found["a"] != found["b"]


def test_all_quantities_of_a_probe_are_drawn_together() -> None:
    x = np.random.default_rng(3).random(30)
    total = {"sum": lambda s: mean_of("x", ["set"])(s) + mean_of("y", ["set"])(s)}
    assert intervals({"set": {"x": x, "y": 1 - x}}, total)["sum"] == pytest.approx((1, 1))


@given(VALUES, st.integers(0, 2**40), st.floats(0.5, 3), st.floats(-2, 2))
def test_an_interval_lies_within_the_values_narrows_with_the_level_and_moves_with_a_linear_change(
    values: list[float], seed: int, factor: float, shift: float
) -> None:
    options: dict[str, Any] = {"resamples": 40, "seed": seed}
    (low, high), (lower, higher) = (
        intervals(one_set(*values), MEAN, level=level, **options)["mean"] for level in (0.5, 0.95)
    )
    assert min(values) - 1e-12 <= lower <= low <= high <= higher <= max(values) + 1e-12
    changed = intervals(one_set(*np.array(values) * factor + shift), MEAN, **options)["mean"]
    assert changed == pytest.approx([lower * factor + shift, higher * factor + shift], abs=1e-9)


WRONG = "set set: every quantity needs one value a probe"


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ({"set": {"x": np.array([0.5, np.nan])}}, {}, "set set: x of probe 1 is nan, not a number"),
        ({"set": {"x": np.array([np.inf])}}, {}, "set set: x of probe 0 is inf"),
        ({"set": {"x": np.array([])}}, {}, WRONG),
        ({"set": {"x": np.ones(2), "y": np.ones(3)}}, {}, WRONG),
        ({"set": {"x": np.ones((2, 2))}}, {}, WRONG),
        ({"set": {}}, {}, WRONG),
        (one_set(1, 2), {"facts": {"set": ["a"]}}, "set set has 2 probes and the facts of 1"),
        (one_set(1, 2), {"facts": {}}, "set set has 2 probes and the facts of 0"),
        (one_set(1, 2), {"resamples": 0}, "0 resamples"),
        (one_set(1, 2), {"seed": -1}, "the seed is -1"),
        (one_set(1, 2), {"level": 1.0}, "the confidence level is 1.0"),
    ],
)
def test_wrong_samples_and_options_are_refused(
    samples: Samples, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        intervals(samples, MEAN, **options)


@pytest.mark.parametrize(
    ("statistic", "message"),
    [
        (lambda samples: samples["set"]["x"].mean(), r"metric odd gives shape \(\)"),
        (lambda samples: samples["set"]["x"], r"metric odd gives shape \(5, 2\) for 5 resamples"),
        (lambda samples: samples["set"]["x"].mean(axis=-1) * np.nan, "metric odd is not a number"),
    ],
)
def test_a_statistic_that_gives_no_number_a_resample_is_named(statistic: Statistic, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bootstrap(one_set(1, 2), {"odd": statistic}, 5, 0)


# Paired tests.


def p_value(first: Any, second: Any, permutations: int = 9999, seed: int = 0) -> float:
    return permutation_test(one_set(*first), one_set(*second), MEAN, permutations, seed)["mean"]


def test_p_values_by_hand() -> None:
    """The differences are 3, 1 and -1, their sum 3; six of the eight ways to set the signs reach it."""
    sums = [abs(3 * i + j + k) for i, j, k in product([1, -1], repeat=3)]
    assert sorted(sums) == [1, 1, 3, 3, 3, 3, 5, 5]
    assert p_value([3, 1, 0], [0, 0, 1]) == 6 / 8
    assert p_value([1], [0]) == 1
    assert p_value(np.ones(100), np.zeros(100), permutations=99) == 1 / 100  # never 0
    # Probes without a difference do not stand in the way of counting.
    assert p_value([1.0] * 8 + [0.5] * 5000, [0.0] * 8 + [0.5] * 5000) == 2 / 2**8


@given(PAIRS)
def test_few_probes_are_counted_exactly(pairs: list[tuple[int, int]]) -> None:
    first, second = np.array(pairs, dtype=float).T
    signs = np.array(list(product([1, -1], repeat=len(pairs))))
    expected = np.mean(np.abs(signs @ (first - second)) >= abs(np.sum(first - second)))
    assert p_value(first, second) == pytest.approx(expected)


@pytest.mark.parametrize(("probes", "permutations", "tolerance"), [(10, np.inf, 1e-12), (200, 9999, 0.015)])
def test_it_agrees_with_scipy(probes: int, permutations: float, tolerance: float) -> None:
    generator = np.random.default_rng(1)
    first, second = generator.random(probes), generator.random(probes) + 3 / probes
    theirs = scipy_test(
        (first, second),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=permutations,
        rng=np.random.default_rng(0),
    ).pvalue
    assert p_value(first, second) == pytest.approx(theirs, abs=tolerance)
    assert p_value(second, first) == p_value(first, second)


def exchanged(a: Samples, b: Samples, swapped: set[str]) -> Samples:
    return {
        name: {
            q: np.array([(b if f in swapped else a)[name][q][i] for i, f in enumerate(asked)]) for q in "vw"
        }
        for name, asked in FACTS.items()
    }


@pytest.mark.parametrize("name", REFERENCES)
def test_the_exact_p_value_is_that_of_all_exchanges_of_facts(name: str) -> None:
    a, b, statistic = made(6), made(7), REFERENCES[name][0]
    differences = []
    for signs in product([False, True], repeat=3):
        swapped = {fact for fact, sign in zip("xyz", signs, strict=True) if sign}
        there, back = exchanged(a, b, swapped), exchanged(b, a, swapped)
        differences.append(abs(float(statistic(there) - statistic(back))))
    expected = np.mean(np.array(differences) >= differences[0] - 1e-12)
    assert permutation_test(a, b, {"m": statistic}, 8, 0, FACTS)["m"] == expected
    drawn = permutation_test(a, b, {"m": statistic}, 7, 0, FACTS)["m"]
    assert drawn * 8 == int(drawn * 8)


@pytest.mark.parametrize("probes", [9, 30], ids=["counted", "drawn"])
def test_the_size_of_the_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch, probes: int) -> None:
    generator = np.random.default_rng(6)
    first, second = generator.random(probes), generator.random(probes)
    expected = p_value(first, second, 999)
    monkeypatch.setattr(summary, "MOST_VALUES", 70)
    assert p_value(first, second, 999) == expected


def test_under_the_null_hypothesis_p_is_below_alpha_as_often_as_alpha_over_facts_and_not_over_probes() -> (
    None
):
    """Two models that answer 30 facts alike well: of each fact one of them knows all 8 phrasings."""
    generator = np.random.default_rng(10)
    mean, over_facts, over_probes = {"m": mean_of("v", ["s"])}, [], []
    facts = {"s": np.repeat(np.arange(30), 8).tolist()}
    for trial in range(400):
        knows = generator.integers(2, size=30)
        a, b = ({"s": {"v": np.repeat(values, 8).astype(float)}} for values in (knows, 1 - knows))
        over_facts.append(permutation_test(a, b, mean, 199, trial, facts)["m"])
        over_probes.append(permutation_test(a, b, mean, 199, trial)["m"])
    assert 0.01 < np.mean(np.array(over_facts) <= 0.05) < 0.083  # 0.05 and three standard errors
    assert np.mean(np.array(over_probes) <= 0.05) > 0.3


def test_the_interval_of_a_difference_is_that_of_the_paired_differences() -> None:
    """Two models that move together: the difference is known far better than either."""
    generator = np.random.default_rng(0)
    second = generator.random(200)
    first = second + generator.normal(0.02, 0.05, 200)
    theirs = scipy_bootstrap(
        (first - second,), np.mean, method="percentile", n_resamples=20000, rng=np.random.default_rng(1)
    ).confidence_interval
    found = compare(one_set(*first), one_set(*second), MEAN, resamples=20000, permutations=99)["mean"]
    assert (found["low"], found["high"]) == pytest.approx((theirs.low, theirs.high), abs=0.001)
    assert found["difference"] == pytest.approx((first - second).mean())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (one_set(1, 2), "set set is of other probes: only answers to the same"),
        ({"other": {"x": np.ones(3)}}, "set other is of other probes"),
        ({"set": {"y": np.ones(3)}}, "set set is of other probes"),
        (one_set(1, 2, np.nan), "set set: x of probe 2 is nan"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_models_names(other: Samples, message: str) -> None:
    with pytest.raises(ValueError, match=f"models a and b: {message}"):
        compare_all({"a": one_set(1, 2, 3), "b": other}, MEAN)


def test_every_pair_is_compared_and_corrected_together() -> None:
    """Eight probes on which a and c differ, all one way: p = 2/256, and there are three tests."""
    models = {"a": one_set(*[1] * 8), "b": one_set(*[1] * 8), "c": one_set(*[0] * 8)}
    records = compare_all(models, MEAN)
    assert [(one["a"], one["b"]) for one in records] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [one["p_holm"] for one in records] == [1, 6 / 256, 6 / 256]
    assert records[1] == {
        **{"a": "a", "b": "c", "metric": "mean", "difference": 1, "low": 1, "high": 1},
        **{"p_value": 2 / 256, "p_holm": 6 / 256, "probes": 8, "facts": 8, "unit": "fact", "test": TEST},
    }
    assert compare_all({"a": one_set(1)}, MEAN) == []


def test_holm_by_hand() -> None:
    """0.01 * 4, 0.02 * 3, 0.03 * 2 raised to 0.06, 0.04 * 1 raised to 0.06."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.5]) == [1, 1]
    assert holm([]) == []
