"""Gains at equal compute, over the steps, over worlds together and by interval, where they are known."""

from __future__ import annotations

import pytest
from scipy.stats import ttest_1samp

from benchmarks.study.equal_compute import at_equal_compute, equal_compute_table
from benchmarks.study.evidence import verdict_table, worlds_above
from benchmarks.study.head_start import gain_at_end, gains_over_steps, head_start_table
from benchmarks.study.measures import OVERALL
from benchmarks.study.pooled import pool, pooled_table, student_interval
from tests.benchmarks.study_runs import scored_run

PAIR = ("rerule", "rule")


def test_at_equal_compute_a_run_is_read_between_its_validations() -> None:
    runs = []
    for seed, start in ((1, 0.2), (2, 0.3)):
        # Validated at the steps 2 and 4: at 2 M and 6 M tokens, and the cheaper run at 2 M and 3 M.
        runs.append(scored_run("rerule", seed, [start, start + 0.4], costs=[1e6, 2e6, 4e6, 6e6]))
        runs.append(scored_run("rule", seed, [start, start + 0.2], costs=[1e6, 2e6, 2.5e6, 3e6]))
    found = at_equal_compute(runs, *PAIR)
    assert found is not None
    # At 3 M the dearer run has made a quarter of its 0.4, the cheaper one all of its 0.2.
    assert found.last.difference == pytest.approx(0.1 - 0.2)
    # Both lines start together and are straight: half of that on average.
    assert found.during.difference == pytest.approx(-0.05)
    assert (found.compute, found.cheaper_compute) == (6.0, 3.0)
    assert found.starts == ((1, "a"), (2, "a"))
    (row,) = equal_compute_table({"many": runs, "tofu": []}, *PAIR).rows
    assert row.name == "many (2 seeds, 1 stage-1 model)"
    assert [cell.text for cell in row.cells] == ["6.00", "3.00", "-0.100", "-0.050"]


def test_no_two_shared_seeds_are_no_comparison_at_equal_compute() -> None:
    runs = [scored_run("rerule", 1, [0.5]), scored_run("rule", 1, [0.5]), scored_run("rule", 2, [0.5])]
    assert at_equal_compute(runs, *PAIR) is None


def test_gains_over_the_steps_are_means_over_shared_seeds() -> None:
    runs = [scored_run("rerule", seed, [0.2, 0.6, 0.7]) for seed in (1, 2, 3)]
    runs += [scored_run("rule", 1, [0.2, 0.2, 0.6]), scored_run("rule", 2, [0.2, 0.4, 0.7, 0.7])]
    assert gains_over_steps(runs, PAIR) == pytest.approx({2: 0.0, 4: 0.3, 6: 0.05})
    assert gain_at_end(runs, PAIR) == pytest.approx(0.05)
    table = head_start_table({"many": runs, "slow": runs[:1]}, (PAIR,))
    assert [heading.label for heading in table.headings] == ["step 2", "step 4", "step 6", "end, all probes"]
    (row,) = table.rows
    assert [cell.text for cell in row.cells] == ["+0.000", "+0.300", "+0.050", "+0.050"]


def test_pooled_seeds_have_students_interval_and_models_their_own() -> None:
    gains = {("slow_other", "a"): [0.1, 0.2], ("slow_other", "b"): [0.3, 0.3], ("tofu", "c"): [0.4]}
    worlds: dict[str, list] = {"slow_other": [], "tofu": []}
    for (world, model), values in gains.items():
        for place, value in enumerate(values):
            seed = place + ord(model)
            worlds[world].append(scored_run("rerule", seed, [0.5 + value], world, model))
            worlds[world].append(scored_run("rule", seed, [0.5], world, model))
    found = pool(worlds, PAIR)
    low, high = ttest_1samp([0.1, 0.2, 0.3, 0.3, 0.4], 0).confidence_interval(0.95)
    assert found.over_seeds.difference == pytest.approx(0.26)
    assert found.student == pytest.approx((low, high))
    assert sorted(found.over_models.values()) == pytest.approx([0.15, 0.3, 0.4])
    assert found.models == pytest.approx((0.85 / 3, *student_interval([0.15, 0.3, 0.4])))
    (row,) = pooled_table(worlds, [PAIR]).rows
    assert [cell.text for cell in row.cells] == ["5", "+0.2600", "+0.2600", "3", "+0.2833"]


def test_a_verdict_names_the_worlds_whose_interval_excludes_zero() -> None:
    def world(gains: list[float]) -> list:
        runs = [scored_run("rule", seed, [0.5]) for seed in range(len(gains))]
        return runs + [scored_run("rerule", seed, [0.5 + gain]) for seed, gain in enumerate(gains)]

    worlds = {
        "many": world([0.1, 0.11, 0.12, 0.1, 0.11]),
        "slow": world([0.1, -0.1, 0.1, -0.1, 0.01]),
        "tofu": world([-0.1, -0.11, -0.12, -0.1, -0.11]),
    }
    assert worlds_above(worlds, PAIR, OVERALL) == ["many"]
    assert worlds_above(worlds, PAIR, OVERALL, -1) == ["tofu"]
    row = verdict_table(worlds).rows[0]
    assert [cell.text for cell in row.cells] == ["1 of 3: many", "1 of 3: tofu"] * 2
