from __future__ import annotations

from dataclasses import replace

from recipe.rerule.evaluation import registry
from recipe.rerule.evaluation.registry import benchmarks
from recipe.rerule.evaluation.table import JUDGED, all_columns
from recipe.rerule.reporting.result_tables import (
    all_metrics_table,
    comparisons_table,
    marks_of,
    published_notes,
    results_table,
    targets_table,
)
from tests.report.made import comparison, evaluation

COMPARISONS = (
    comparison("base", "rule", "forget/all", 0.5, 0.1, 0.004),
    comparison("base", "rule", "retain/all", 0.375, 0.1, 0.04),
    comparison("rule", "other", "forget/all", 0.1, 0.1, 0.001),
)
EVALUATION = evaluation(intervals={"rule": {"forget/all": (0.2, 0.312)}}, comparisons=COMPARISONS)


def test_results_have_models_anchors_and_published_rows_in_per_cent():
    table = results_table(EVALUATION, "base")
    assert [(h.group, h.text) for h in table.headings] == [
        ("forget", "FB ↓"),
        ("forget", "All ↓"),
        ("neighbours", "All ↑"),
    ]
    rows = {row.name: ([cell.text for cell in row.cells], row.kind) for row in table.rows}
    assert rows["base"] == (["–", "75.0", "87.5"], "model")
    assert rows["always refuses"] == (["–", "12.6", "–"], "anchor")
    assert rows["ReRULE (ReRULE paper, RWKU table, single run)"] == (["26.5", "24.2", "74.1"], "published")
    assert [row.kind for row in table.rows] == ["model"] * 2 + ["anchor"] + ["published"] * 4


def test_cells_keep_numbers_intervals_and_marks():
    rule = next(row for row in results_table(EVALUATION, "base").rows if row.name == "rule")
    assert (rule.cells[1].value, rule.cells[1].interval, rule.cells[1].mark) == (0.25, "20.0–31.2", "**")
    assert (rule.cells[2].interval, rule.cells[2].bounds, rule.cells[2].mark) == ("", None, "*")


def test_an_interval_that_is_the_number_itself_is_not_shown():
    constant = {"always refuses": {"forget/all": (0.126, 0.126)}, "base": {"forget/all": (0.75, 0.7504)}}
    table = results_table(replace(EVALUATION, intervals=constant), "base")
    cells = {row.name: row.cells[1] for row in table.rows}
    assert (cells["always refuses"].interval, cells["base"].interval) == ("", "")
    assert cells["always refuses"].bounds == (0.126, 0.126)


def test_a_published_row_that_is_not_shown_has_no_note():
    table = results_table(evaluation(benchmark="tofu", results={"base": {"forget_Q_A_ROUGE": 0.5}}), "base")
    assert [row.name.split(" ")[0] for row in table.rows if row.kind == "published"] == ["RULE", "ReRULE"]
    assert "open-unlearning reports" not in table.caption
    assert "is what saying only" in table.caption


def test_the_caption_names_the_convention_the_base_and_what_is_known_of_published_rows():
    caption = results_table(EVALUATION, "base").caption
    for said in ("ROUGE-L convention: rwku.", "differs from base", "italics", registry.CAUTION):
        assert said in caption
    plain = results_table(evaluation(benchmark="world", anchors={}), "base").caption
    for unsaid in ("differs from", "italics", "Published", "bootstrap"):
        assert unsaid not in plain


def test_marks_follow_the_corrected_p_value_and_the_base():
    assert marks_of(COMPARISONS, "base") == {("rule", "forget/all"): "**", ("rule", "retain/all"): "*"}
    assert marks_of(COMPARISONS, "other") == {("rule", "forget/all"): "**"}
    assert marks_of((comparison("a", "b", "x", 0.1, 0.1, 0.05),), "a") == {("b", "x"): ""}


def test_known_defects_stand_below_the_table():
    notes = published_notes(benchmarks()["tofu"].published.results)
    assert "† original: The p-value compares 300 truth ratios with 40" in notes
    assert "† RULE, ReRULE: 0.1322 is what saying only" in notes
    assert published_notes(()) == ""


def test_published_rows_use_columns_that_exist():
    for name, benchmark in benchmarks().items():
        for judged, rows in (("", benchmark.published.results), (JUDGED, benchmark.published.naturalness)):
            known = {column.metric for column in all_columns(f"{judged}{name}")}
            assert all(row.values.keys() <= known for row in rows)


def test_published_averages_are_those_of_their_parts():
    rwku = benchmarks()["rwku"].published
    for row in rwku.results:
        values = row.values
        forget = sum(values[f"forget/{mode}"] for mode in ("fb", "qa", "aa")) / 3
        assert abs(forget - values["forget/all"]) < 0.0011
        assert abs((values["retain/fb"] + values["retain/qa"]) / 2 - values["retain/all"]) < 0.0011
    for row in rwku.naturalness:
        *parts, total = row.values.values()
        assert abs(sum(parts) / 3 - total) < 0.11


def test_all_metrics_targets_and_tests_are_folded_tables():
    assert [row.name for row in all_metrics_table(EVALUATION).rows] == [
        "forget/all",
        "retain/all",
        "forget/fb",
    ]
    targets = targets_table([EVALUATION, evaluation(target="Ben")], "base")
    assert [row.name for row in targets.rows][:4] == [
        "Ada: base",
        "Ada: rule",
        "Ada: always refuses",
        "Ben: base",
    ]
    tests = comparisons_table(EVALUATION)
    assert [cell.text for cell in tests.rows[0].cells] == ["forget/all", "50.0", "0.004", "–", "10", "–"]
    corrected = comparisons_table(
        evaluation(comparisons=tuple(c.model_copy(update={"p_holm": 0.5}) for c in EVALUATION.comparisons))
    )
    assert [cell.text for cell in corrected.rows[0].cells][2:4] == ["0.004", "0.5"]
    assert tests.rows[0].cells[1].interval == "40.0–60.0"
    assert all(table.folded for table in (all_metrics_table(EVALUATION), targets, tests))


def test_the_unit_of_intervals_and_tests_is_said():
    tests = tuple(test.model_copy(update={"facts": 4}) for test in COMPARISONS)
    probes = {"rows": {"forget": 9, "retain": 7}, "facts": {"forget": 4, "retain": 7}}
    counted = replace(EVALUATION, comparisons=tests, meta={"probes": probes})
    caption = results_table(counted, "base").caption
    assert "95 % bootstrap interval over facts" in caption
    assert "(paired test over facts," in caption
    assert "Too few facts for intervals and tests, which need 6: forget (4)." in caption
    table = comparisons_table(counted)
    assert table.caption.endswith("What is resampled and exchanged is the fact.")
    assert [cell.text for cell in table.rows[0].cells][-2:] == ["10", "4"]


def test_numbers_that_are_no_fractions_are_named():
    results = {"base": {"forget/all": 0.5, "mia/forget/loss": 2.5, "fluency": 7.5}}
    caption = all_metrics_table(evaluation(results=results)).caption
    assert (
        caption == "As in results.json: fractions of 1. fluency: bits. mia: nats a token, zlib also a byte."
    )
    assert all_metrics_table(EVALUATION).caption == "As in results.json: fractions of 1."
