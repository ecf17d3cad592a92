from __future__ import annotations

from dataclasses import replace

import pytest
from scipy import stats

from recipe.rerule.reporting.means import mean_over_targets, two_sided_p
from tests.report.made import comparison, evaluation

FIRST = evaluation(
    results={"base": {"forget/all": 0.5, "odd": 1.0}, "rule": {"forget/all": 0.25}},
    anchors={"refuses": {"forget/all": 0.0}},
    intervals={"base": {"forget/all": (0.47, 0.53)}, "rule": {"forget/all": (0.2, 0.3)}},
    comparisons=(comparison("base", "rule", "forget/all", 0.25, 0.03, 0.01),),
)
SECOND = evaluation(
    target="Ben",
    results={"base": {"forget/all": 1.0}, "rule": {"forget/all": 0.75}},
    anchors={"refuses": {"forget/all": 0.5}},
    intervals={"base": {"forget/all": (0.96, 1.0)}},
    comparisons=(comparison("base", "rule", "forget/all", 0.35, 0.04, 0.02),),
)


def test_one_target_is_its_own_mean():
    assert mean_over_targets([FIRST]) is FIRST


def test_targets_weigh_the_same_and_a_metric_that_one_lacks_is_left_out():
    mean = mean_over_targets([FIRST, SECOND])
    assert mean.results == {"base": {"forget/all": 0.75}, "rule": {"forget/all": 0.5}}
    assert mean.anchors == {"refuses": {"forget/all": 0.25}}
    assert mean.target == "mean over 2 targets"


def test_half_widths_add_in_squares_on_each_side():
    intervals = mean_over_targets([FIRST, SECOND]).intervals
    # below: sqrt(.03^2 + .04^2) / 2 = .025; above: sqrt(.03^2 + 0^2) / 2 = .015
    assert intervals == {"base": {"forget/all": pytest.approx((0.725, 0.765))}}


def test_the_mean_difference_has_a_normal_test():
    (test,) = mean_over_targets([FIRST, SECOND]).comparisons
    # half-width sqrt(.03^2 + .04^2) / 2 = .025
    assert (test.difference, test.low, test.high) == pytest.approx((0.3, 0.275, 0.325))
    standard_error = 0.025 / stats.norm.ppf(0.975)
    assert test.p_value == pytest.approx(2 * stats.norm.sf(0.3 / standard_error), rel=1e-9)
    assert test.probes == 20


def test_mean_tests_are_corrected_for_their_number():
    tests = tuple(comparison("base", "rule", name, 0.05, 0.05, 0.5) for name in ("x", "y"))
    mean = mean_over_targets([replace(FIRST, comparisons=tests), replace(SECOND, comparisons=tests)])
    p_value = mean.comparisons[0].p_value
    assert [test.p for test in mean.comparisons] == pytest.approx([2 * p_value] * 2)


@pytest.mark.parametrize(("difference", "error", "expected"), [(0.0, 0.0, 1.0), (0.1, 0.0, 0.0)])
def test_a_difference_without_spread(difference, error, expected):
    assert two_sided_p(difference, error) == expected


def test_what_is_pooled_over_probes_is_no_mean_over_targets():
    pooled = {"forget/all_pooled": 0.5, "retain/all_pooled/refusal_rate": 0.0}
    ends = {name: (0.4, 0.6) for name in pooled}
    targets = [
        replace(target, results={"base": target.results["base"] | pooled}, intervals={"base": ends})
        for target in (FIRST, SECOND)
    ]
    mean = mean_over_targets(targets)
    assert mean.results == {"base": {"forget/all": 0.75}}
    assert mean.intervals == {}
