"""Runs that do not take off: their share, gains without them, and how often intervals hold with them."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy.stats import beta

from benchmarks.study import comparison, coverage
from benchmarks.study.comparison import paired
from benchmarks.study.coverage import Mixture, intervals, mixture_of
from benchmarks.study.take_off import both_table, share_cell, share_table, split_by_take_off
from tests.benchmarks.study_runs import scored_run

PAIR = ("rerule", "rule")


def runs_of(rule: list[float]) -> list:
    runs = [scored_run("rule", seed, [score]) for seed, score in enumerate(rule)]
    return runs + [scored_run("rerule", seed, [0.75]) for seed in range(len(rule))]


def test_the_share_that_takes_off_has_the_exact_interval() -> None:
    cell = share_cell(runs_of([0.7] * 7 + [0.49])[:8])
    assert cell.text == "7 of 8"
    assert cell.bounds == pytest.approx((beta.ppf(0.025, 7, 2), beta.ppf(0.975, 8, 1)))
    assert cell.interval == "0.47 to 1.00"
    (rule, rerule) = share_table({"many": runs_of([0.5, 0.4]), "slow": []}).rows
    assert [cell.text for cell in rule.cells] == ["1 of 2", "–"]
    assert [cell.text for cell in rerule.cells] == ["2 of 2", "–"]


def test_pairs_are_split_by_whether_both_take_off() -> None:
    runs = runs_of([0.7, 0.65, 0.25])
    both, others = split_by_take_off(runs, PAIR)
    assert both == pytest.approx([0.05, 0.1])
    assert others == pytest.approx([0.5])
    row = both_table(runs).rows[0]
    assert [cell.text for cell in row.cells] == ["+0.217", "3", "+0.075", "2"]


def test_a_mixture_is_fitted_to_both_kinds() -> None:
    found = mixture_of([0.0, 0.2], [0.5, 0.7])
    assert (found.middle, found.far, found.stuck) == pytest.approx((0.1, 0.6, 0.5))
    assert found.deviation == pytest.approx(0.2 / 2**0.5)
    assert found.truth == pytest.approx(0.35)


def test_simulated_intervals_are_those_of_the_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "RESAMPLES", 50_000)
    values = np.random.default_rng(1).normal(0.1, 1.0, 12)
    resamples = np.random.default_rng(2).multinomial(12, [1 / 12] * 12, 50_000) / 12
    expected = paired(values, np.zeros(12))
    low, high = intervals(values[None], resamples)
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high), abs=0.03)


def test_coverage_is_that_of_the_level_without_stuck_seeds_and_falls_with_them() -> None:
    normal = coverage.coverage(Mixture(0.1, 0.1, 1.0, 0.0), 8, 1000, 0)
    # 95 % of 1,000, within three standard deviations of a binomial count.
    assert 0.929 <= normal <= 0.971
    # Without a stuck seed among 8, as in 34 % of the trials, no interval reaches the mean.
    found = coverage.coverage(Mixture(0.0, 1.0, 0.001, 1 / 8), 8, 1000, 0)
    assert found == pytest.approx(1 - (7 / 8) ** 8, abs=0.05)
    assert found == coverage.coverage(Mixture(0.0, 1.0, 0.001, 1 / 8), 8, 1000, 0)


def test_the_command_prints_a_row_a_pair(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["coverage", "benchmarks/study/results.parquet", "--trials", "200", "--seed", "3"]
    )
    coverage.main()
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head == "|  | 8 seeds | 12 seeds | 16 seeds | 24 seeds |"
    assert len(rows) == len(coverage.PAIRS)
    few = [float(row.split("|")[2]) for row in rows]
    most = [float(row.split("|")[5]) for row in rows]
    assert 0.55 < min(few) < 0.75
    assert min(most) > 0.85
    monkeypatch.setattr(sys, "argv", ["coverage", "no.parquet"])
    with pytest.raises(SystemExit, match=r"error: no\.parquet is no result file"):
        coverage.main()
    monkeypatch.setattr(sys, "argv", ["coverage", "no.parquet", "--trials", "0"])
    with pytest.raises(SystemExit, match="error: --trials must be at least 1"):
        coverage.main()
