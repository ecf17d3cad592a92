"""Comparisons of arms against values worked out otherwise, the result file, and the study's report."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import norm, t, ttest_rel

from benchmarks.study import comparison, results
from benchmarks.study import report as study_report
from benchmarks.study.arms import CHOOSING_SEEDS, OURS
from benchmarks.study.comparison import expanded_level, paired
from benchmarks.study.measures import on_the_way, overall, solved_at
from benchmarks.study.runs import StudyError, StudyRun, write_run


def made_run(arm: str, seed: int, unseen: float, world: str = "small") -> StudyRun:
    final = {"retain_unseen/recall": unseen, "forget/recall": 0.25, "steps": 40.0, "compute": 1.5e6}
    curves = {
        "validated_at": [10.0, 20.0, 30.0, 40.0],
        "retain_unseen/recall": [0.0, 0.25, 0.5, unseen],
        "early_hard/retain": [0.5, 0.75, 0.9375],
    }
    return StudyRun(world, arm, seed, "abc", {"seed": seed, "replay": {"enable": True}}, final, curves)


def test_a_comparison_has_the_mean_the_exact_p_value_and_the_effect() -> None:
    arm, base = [0.9, 0.8, 0.7, 0.95], [0.8, 0.75, 0.72, 0.8]
    found = paired(arm, base)
    differences = [0.1, 0.05, -0.02, 0.15]
    assert found.difference == pytest.approx(0.07)
    signs = [
        abs(sum(s * d for s, d in zip(flips, differences, strict=True)))
        for flips in itertools.product((1, -1), repeat=4)
    ]
    assert found.p_value == pytest.approx(sum(value >= 0.28 - 1e-9 for value in signs) / 16)
    # Student's t of the pairs is sqrt(n) d.
    assert found.effect * 2 == pytest.approx(ttest_rel(arm, base).statistic)
    assert found.low < 0.07 < found.high
    assert found.seeds == 4


def test_equal_arms_differ_by_nothing_and_one_seed_has_no_effect() -> None:
    same = paired([0.5, 0.25], [0.5, 0.25])
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    assert math.isnan(same.effect)
    assert math.isnan(paired([0.5], [0.25]).effect)
    with pytest.raises(ValueError, match="not a number"):
        paired([0.5, math.nan], [0.5, 0.25])


def test_the_level_is_moved_out_as_hesterberg_says() -> None:
    for seeds in (3, 8, 30):
        tail = norm.cdf(-math.sqrt(seeds / (seeds - 1)) * t.ppf(0.975, seeds - 1))
        assert expanded_level(seeds) == pytest.approx(1 - 2 * tail)
    assert expanded_level(10**6) == pytest.approx(0.95, abs=1e-4)


def test_intervals_over_eight_seeds_cover_as_often_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "RESAMPLES", 2000)
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        drawn = paired(generator.normal(0.3, 1.0, 8), np.zeros(8))
        held += drawn.low <= 0.3 <= drawn.high
    # 95 % of 400, within three standard deviations of a binomial count; plain percentiles hold 89 % here.
    assert 366 <= held <= 394


def test_results_are_packed_and_unpacked(tmp_path: Path) -> None:
    runs = [made_run("rule", 1, 0.5), made_run("rule", 2, 0.25), made_run("rerule", 1, 0.75, "other")]
    for run in runs:
        write_run(run, tmp_path / "a")
    file = tmp_path / "results.parquet"
    assert results.pack(tmp_path / "a", file) == 3
    assert sorted(results.read_results(file), key=lambda run: (run.world, run.seed)) == [
        runs[2],
        runs[0],
        runs[1],
    ]
    assert results.unpack(file, tmp_path / "b") == 3
    assert results.unpack(file, tmp_path / "b") == 0
    assert results.pack(tmp_path / "b", tmp_path / "again.parquet") == 3
    assert results.read_results(tmp_path / "again.parquet") == results.read_results(file)


def test_what_is_no_result_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"none\.parquet is no result file"):
        results.read_results(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(StudyError, match=r"text\.parquet is no result file"):
        results.read_results(tmp_path / "text.parquet")
    pq.write_table(pa.table({"arm": ["rule"]}), tmp_path / "other.parquet")
    with pytest.raises(StudyError, match="has the columns"):
        results.read_results(tmp_path / "other.parquet")
    with pytest.raises(StudyError, match="keeps no runs"):
        results.pack(tmp_path, tmp_path / "out.parquet")


def test_the_report_compares_arms_over_their_common_seeds(tmp_path: Path) -> None:
    runs = [made_run("rule", seed, 0.5 + seed / 100) for seed in (1, 2, 3)]
    runs += [made_run("random", seed, 0.7 + seed / 100) for seed in (1, 2, 3)]
    runs += [made_run("rerule", seed, 0.75) for seed in (1, 2, 3, 4)]
    report = study_report.build_report(runs, "command", tmp_path)
    tables = {table.name: table for table in report.tables()}
    outcomes = {row.name: row for row in tables["outcomes_small"].rows}
    assert outcomes["rule"].cells[8].text == "0.520 ± 0.010"
    assert outcomes["rerule"].cells[0].text == "4"
    row, other = tables["compared_small_retain_unseen_recall"].rows
    assert (row.name, other.name) == ("rerule − rule", "rerule − random")
    # 0.24, 0.23 and 0.22 on the seeds 1 to 3; all of one sign, so 2 of 8 exchanges are as far out. Two pairs.
    assert [cell.text for cell in row.cells] == ["+0.230", "+23.00", "0.2500", "0.5000", "3"]
    assert row.cells[0].bounds is None
    assert len(report.figures()) == 1
    more = [*runs, *(made_run("rule", seed, 0.5 + seed / 100) for seed in (4, 5)), made_run("rerule", 5, 0.7)]
    tables = {table.name: table for table in study_report.build_report(more, "command", tmp_path).tables()}
    row, other = tables["compared_small_retain_unseen_recall"].rows
    assert row.cells[0].bounds is not None
    assert other.cells[0].bounds is None


def test_seeds_that_an_arm_was_chosen_on_count_in_no_comparison(tmp_path: Path) -> None:
    counted = [made_run(arm, seed, 0.5) for arm in ("rule", "rerule") for seed in (1, 2)]
    chosen_on = [
        made_run(arm, seed, 0.9)
        for arm in ("rerule", "recent")
        for seed in (CHOOSING_SEEDS, CHOOSING_SEEDS + 1)
    ]
    report = study_report.build_report([*counted, *chosen_on], "command", tmp_path)
    tables = {table.name: table for table in report.tables()}
    assert [row.name for row in tables["outcomes_small"].rows] == ["rule", "rerule"]
    assert [row.name for row in tables["choosing_outcomes_small"].rows] == ["rerule", "recent"]
    (row,) = tables["compared_small_retain_unseen_recall"].rows
    assert (row.cells[0].value, row.cells[-1].value) == (0.0, 2)


def test_a_table_sets_the_worlds_side_by_side(tmp_path: Path) -> None:
    runs = [
        made_run(arm, seed, recall) for arm, recall in (("rule", 0.5), ("rerule", 0.75)) for seed in (1, 2)
    ]
    runs += [made_run(arm, seed, 0.5, "other") for arm in ("rerule", "random") for seed in (1, 2)]
    runs += [made_run(arm, CHOOSING_SEEDS, 0.9, "tried") for arm in ("rerule", "rule")]
    report = study_report.build_report(runs, "command", tmp_path)
    table = {table.name: table for table in report.tables()}["compared_worlds_retain_unseen_recall"]
    assert [heading.text for heading in table.headings] == ["other", "small"]
    rows = {row.name: [cell.text for cell in row.cells] for row in table.rows}
    assert rows["rerule − rule"] == ["–", "+0.250"]
    assert rows["rerule − random"] == ["+0.000", "–"]
    assert rows["rerule − equal_updates"] == ["–", "–"]


def test_what_explains_ours_is_shown_and_not_corrected_for(tmp_path: Path) -> None:
    recalls = {OURS: 0.75, "quantile_current": 0.625, "equal_updates": 0.5}
    runs = [made_run(arm, seed, recall) for arm, recall in recalls.items() for seed in (1, 2)]
    tables = {table.name: table for table in study_report.build_report(runs, "command", tmp_path).tables()}
    shown = {row.name: row.cells[0].text for row in tables["compared_worlds_retain_unseen_recall"].rows}
    assert shown[f"{OURS} − quantile_current"] == "+0.125"
    assert shown["quantile_current − equal_updates"] == "+0.125"
    (row,) = tables["compared_small_retain_unseen_recall"].rows
    assert (row.name, row.cells[2].text, row.cells[3].text) == (f"{OURS} − equal_updates", "0.5000", "0.5000")


def test_gains_are_told_apart_by_how_far_rule_comes(tmp_path: Path) -> None:
    def complete(arm: str, seed: int, recall: float, world: str) -> StudyRun:
        run = made_run(arm, seed, recall, world)
        return replace(run, final={**run.final, "retain/recall": 0.5})

    runs = []
    for world, order in (("one", [1, 2, 3, 4, 5]), ("two", [5, 4, 3, 2, 1])):
        # RULE ends in this order; ReRULE gains 0.3 over equal updates on each world's two lowest
        # and loses as much on the middle one, which is in neither half.
        for rank, seed in enumerate(order):
            runs.append(complete("rule", seed, 0.1 + rank / 10, world))
            runs.append(complete("equal_updates", seed, 0.6, world))
            runs.append(complete("rerule", seed, (0.9, 0.9, 0.3, 0.6, 0.6)[rank], world))
    report = study_report.build_report(runs, "command", tmp_path)
    table = {table.name: table for table in report.tables()}["take_off"]
    (row,) = table.rows
    # A third of unseen recall's difference is overall's.
    assert (row.name, [cell.text for cell in row.cells]) == (
        "rerule − equal_updates",
        ["+0.100", "+0.000", "4"],
    )


def test_solved_means_the_first_validation_with_a_high_reward() -> None:
    run = made_run("rule", 1, 0.5)
    assert solved_at(run) == 40.0
    early = {**run.curves, "early_hard/retain": [0.95, 0.5, 0.5]}
    assert solved_at(replace(run, curves=early)) == 20.0
    assert solved_at(replace(run, curves={**run.curves, "early_hard/retain": [0.1]})) == 40.0
    assert solved_at(replace(run, curves={})) is None


def test_overall_is_the_mean_of_forgetting_keeping_and_the_unseen() -> None:
    final = made_run("rule", 1, 0.5).final
    assert overall(final) is None
    assert overall({**final, "retain/recall": 0.75}) == pytest.approx((0.75 + 0.75 + 0.5) / 3)


def test_overall_on_the_way_is_its_mean_over_the_validations() -> None:
    run = made_run("rule", 1, 0.5)
    recalls = {"forget/recall": [0.5, 0.25], "retain/recall": [0.5, 1.0], "retain_unseen/recall": [0.2, 0.8]}
    run = replace(run, curves={**run.curves, **recalls})
    assert on_the_way(run) == pytest.approx(((0.5 + 0.5 + 0.2) + (0.75 + 1.0 + 0.8)) / 6)
    assert on_the_way(replace(run, curves={})) is None


def test_curves_end_with_the_last_validation() -> None:
    assert study_report.mean_curve([made_run("rule", 1, 0.5)], "early_hard/retain") == (
        [20.0, 30.0, 40.0],
        [0.5, 0.75, 0.9375],
    )
    longer = made_run("rule", 2, 0.5)
    longer = replace(
        longer,
        curves={"validated_at": [10.0, 20.0], "early_hard/retain": [0.25]},
    )
    assert study_report.mean_curve([made_run("rule", 1, 0.5), longer], "early_hard/retain") == (
        [20.0],
        [0.375],
    )
