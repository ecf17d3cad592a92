from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap as scipy_bootstrap
from scipy.stats import hmean

from recipe.rerule.evaluation.statistics import intervals as module
from recipe.rerule.evaluation.statistics.intervals import bootstrap, intervals, percentile_interval
from recipe.rerule.evaluation.statistics.samples import Array, Samples, mean_of, mean_of_means

VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def one_set(*values: float) -> Samples:
    return {"set": {"x": np.array(values, dtype=float)}}


def random_sets(**sizes: int) -> Samples:
    generator = np.random.default_rng(5)
    return {name: {"x": generator.random(size)} for name, size in sizes.items()}


MEAN = {"mean": mean_of("x", ["set"])}


def test_the_mean_of_three_probes_has_the_percentiles_of_all_27_resamples() -> None:
    """The quantiles of the exact distribution, where they fall inside a step of it."""
    means = sorted(np.mean(draw) for draw in product([0.0, 1.0, 4.0], repeat=3))
    assert means[1:4] == [pytest.approx(1 / 3)] * 3  # 0 has the share 1/27, and 1/3 the next 3/27
    low, high = intervals(one_set(0, 1, 4), MEAN, resamples=20000, level=0.85)["mean"]
    assert low == pytest.approx(1 / 3)
    assert high == pytest.approx(3)


def test_it_agrees_with_scipy_on_the_mean() -> None:
    values = np.random.default_rng(1).beta(0.5, 1, 300)
    theirs = scipy_bootstrap(
        (values,), np.mean, method="percentile", n_resamples=20000, rng=np.random.default_rng(2)
    ).confidence_interval
    ours = intervals(one_set(*values), MEAN, resamples=20000)["mean"]
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.002)


def test_it_agrees_with_scipy_on_the_harmonic_mean_of_three_sets() -> None:
    samples = random_sets(first=60, second=25, third=40)

    def harmonic(samples: Samples) -> Array:
        return hmean([samples[name]["x"].mean(axis=-1) for name in ("first", "second", "third")])

    theirs = scipy_bootstrap(
        [quantities["x"] for quantities in samples.values()],
        lambda *sets, axis: hmean([values.mean(axis=axis) for values in sets]),
        method="percentile", n_resamples=20000, rng=np.random.default_rng(2), vectorized=True,
    ).confidence_interval  # fmt: skip
    ours = intervals(samples, {"harmonic": harmonic}, resamples=20000)["harmonic"]
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.003)


def test_sets_are_resampled_within_themselves() -> None:
    samples = {"zeros": {"x": np.zeros(9)}, "ones": {"x": np.ones(3)}}
    statistics = {"all": mean_of("x", ["zeros", "ones"]), "sets": mean_of_means("x", ["zeros", "ones"])}
    assert intervals(samples, statistics) == {"all": (0.25, 0.25), "sets": (0.5, 0.5)}


def test_all_quantities_of_a_probe_are_drawn_together() -> None:
    x = np.random.default_rng(3).random(30)
    samples = {"set": {"x": x, "y": 1 - x}}
    total = {"sum": lambda samples: (samples["set"]["x"] + samples["set"]["y"]).mean(axis=-1)}
    low, high = intervals(samples, total)["sum"]
    assert low == high == pytest.approx(1)


@given(st.floats(-1e6, 1e6), st.integers(1, 50))
def test_a_constant_metric_has_no_width(value: float, probes: int) -> None:
    low, high = intervals(one_set(*[value] * probes), MEAN, resamples=50)["mean"]
    assert low == high == pytest.approx(value)


def test_one_probe_says_nothing_about_spread() -> None:
    assert intervals(one_set(0.3), MEAN)["mean"] == (0.3, 0.3)


@given(VALUES, st.integers(0, 2**40))
def test_an_interval_of_the_mean_lies_within_the_values_and_narrows_with_the_level(
    values: list[float], seed: int
) -> None:
    samples = one_set(*values)
    (low, high), (lower, higher) = (
        intervals(samples, MEAN, resamples=40, seed=seed, level=level)["mean"] for level in (0.5, 0.95)
    )
    assert min(values) - 1e-12 <= lower <= low <= high <= higher <= max(values) + 1e-12


@given(VALUES, st.floats(0.5, 3), st.floats(-2, 2))
def test_an_interval_moves_with_a_linear_change(values: list[float], factor: float, shift: float) -> None:
    plain = intervals(one_set(*values), MEAN, resamples=40)["mean"]
    changed = intervals(one_set(*np.array(values) * factor + shift), MEAN, resamples=40)["mean"]
    assert changed == pytest.approx([end * factor + shift for end in plain], abs=1e-9)


def test_the_seed_decides() -> None:
    samples = random_sets(set=40)
    assert intervals(samples, MEAN, seed=1) == intervals(samples, MEAN, seed=1)
    assert intervals(samples, MEAN, seed=1) != intervals(samples, MEAN, seed=2)


def test_other_metrics_and_other_sets_change_nothing() -> None:
    alone = random_sets(set=40)
    more = {"before": {"x": np.arange(7.0)}, **alone, "after": {"x": np.arange(9.0)}}
    statistics = {"after": mean_of("x", ["after"]), **MEAN, "all": mean_of("x", ["before", "set"])}
    assert intervals(more, statistics)["mean"] == intervals(alone, MEAN)["mean"]


def test_sets_of_one_length_are_not_resampled_alike() -> None:
    values = np.random.default_rng(4).random(40)
    samples = {"a": {"x": values}, "b": {"x": values}}
    found = intervals(samples, {name: mean_of("x", [name]) for name in samples})
    assert found["a"] != found["b"]


@pytest.mark.parametrize("most", [1, 100, 333, 10**9])
def test_the_size_of_the_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    samples, statistics = random_sets(set=11, other=3), {"all": mean_of("x", ["set", "other"])}
    expected = bootstrap(samples, statistics, 101, 0)["all"]
    monkeypatch.setattr(module, "MOST_VALUES", most)
    np.testing.assert_array_equal(bootstrap(samples, statistics, 101, 0)["all"], expected)


def test_thirteen_thousand_probes_take_little_memory() -> None:
    samples = random_sets(fb=3268, qa=2879, aa=6984)
    statistics = {name: mean_of("x", [name]) for name in samples} | {"all": mean_of("x", list(samples))}
    tracemalloc.start()
    found = intervals(samples, statistics, resamples=400)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 8 * module.MOST_VALUES  # all at once would take 42 MB of values and as much of indices
    low, high = found["all"]
    assert (high - low) / 2 == pytest.approx(1.96 * np.sqrt(1 / 12 / 13131), rel=0.15)


def test_covers_the_truth_about_as_often_as_it_says() -> None:
    """Means of 40 values of a beta distribution, 400 times: the share stays within four standard errors."""
    generator = np.random.default_rng(8)
    ends = np.array(
        [
            intervals(one_set(*generator.beta(2, 3, 40)), MEAN, resamples=500, seed=trial)["mean"]
            for trial in range(400)
        ]
    )
    covered = np.mean((ends[:, 0] <= 0.4) & (ends[:, 1] >= 0.4))
    assert 0.89 < covered < 0.98


def test_rounding_is_no_width() -> None:
    assert percentile_interval(np.array([0.1, 0.1 + 1e-17, 0.1 - 1e-16]), 0.1, 0.95) == (0.1, 0.1)
    assert percentile_interval(np.array([1e-17, -1e-17]), 0.0, 0.95) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({"set": {"x": np.array([0.5, np.nan])}}, "set set: x of probe 1 is nan, not a number"),
        ({"set": {"x": np.array([np.inf])}}, "set set: x of probe 0 is inf"),
        ({"set": {"x": np.array([])}}, "set set: every quantity needs one value a probe"),
        ({"set": {"x": np.ones(2), "y": np.ones(3)}}, "set set: every quantity needs one value a probe"),
        ({"set": {"x": np.ones((2, 2))}}, "set set: every quantity needs one value a probe"),
        ({"set": {}}, "set set: every quantity needs one value a probe"),
    ],
)
def test_wrong_samples_are_refused(samples: Samples, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        intervals(samples, MEAN)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resamples": 0}, "0 resamples"),
        ({"seed": -1}, "the seed is -1"),
        ({"level": 1.0}, "the confidence level is 1.0"),
        ({"level": 0.0}, "the confidence level is 0.0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        intervals(one_set(1, 2), MEAN, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("statistic", "message"),
    [
        (lambda samples: samples["set"]["x"].mean(), r"metric odd gives shape \(\)"),
        (lambda samples: samples["set"]["x"], r"metric odd gives shape \(5, 2\) for 5 resamples"),
        (lambda samples: samples["set"]["x"].mean(axis=-1) * np.nan, "metric odd is not a number"),
    ],
)
def test_a_statistic_that_gives_no_number_a_resample_is_named(
    statistic: Callable[[Samples], Array], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        bootstrap(one_set(1, 2), {"odd": statistic}, 5, 0)
