"""Tables and figures of evaluations."""

from __future__ import annotations

import pytest

from recipe.rerule.evaluation.registry import benchmarks
from recipe.rerule.evaluation.table import JUDGED, all_columns
from recipe.rerule.reporting import results
from recipe.rerule.reporting.document import cell_of, heading, value_of
from recipe.rerule.reporting.evaluations import Benchmark
from tests.report.made import evaluation, paired, run_of, texts

TESTS = [
    paired("base", "rule", "forget/all", 0.5, 0.1, 0.004),
    paired("base", "rule", "retain/all", 0.375, 0.1, 0.04),
    paired("rule", "other", "forget/all", 0.1, 0.2, 0.001),
]
EVALUATION = evaluation(intervals={"rule": {"forget/all": (0.2, 0.312)}}, tests=TESTS)


def test_results_have_models_anchors_and_published_rows_in_per_cent() -> None:
    table = results.results_table(EVALUATION, "base")
    assert [(column.group, heading(column)) for column in table.columns] == [
        ("forget", "FB ↓"),
        ("forget", "All ↓"),
        ("neighbours", "All ↑"),
    ]
    assert texts(table)["base"] == ["–", "75.0", "87.5"]
    assert texts(table, "anchor") == {"always refuses": ["–", "12.6", "–"]}
    published = texts(table, "published")
    assert published["ReRULE (ReRULE paper, RWKU table, single run)"] == ["26.5", "24.2", "74.1"]
    assert [row.kind for row in table.rows] == ["model"] * 2 + ["anchor"] + ["published"] * 4


def test_cells_keep_numbers_intervals_and_marks() -> None:
    table = results.results_table(EVALUATION, "base")
    rule = next(row for row in table.rows if row.name == "rule")
    _, forget, retain = table.columns
    assert (value_of(rule, forget), cell_of(rule, forget)) == (0.25, ("25.0", "**", "20.0–31.2"))
    assert cell_of(rule, retain) == ("50.0", "*", "")
    assert value_of(rule, retain, "low") is None


def test_an_interval_that_is_the_number_itself_is_not_shown() -> None:
    constant = {"always refuses": {"forget/all": (0.126, 0.126)}, "base": {"forget/all": (0.75, 0.7504)}}
    table = results.results_table(evaluation(intervals=constant), "base")
    cells = {row.name: cell_of(row, table.columns[1]) for row in table.rows}
    assert (cells["always refuses"], cells["base"]) == (("12.6", "", ""), ("75.0", "", ""))


def test_a_published_row_that_is_not_shown_has_no_note() -> None:
    tofu = evaluation(benchmark="tofu", results={"base": {"forget_Q_A_ROUGE": 0.5}}, anchors={})
    table = results.results_table(tofu, "base")
    assert [name.split(" ")[0] for name in texts(table, "published")] == ["RULE", "ReRULE"]
    assert "open-unlearning reports" not in table.caption
    assert "is what saying only" in table.caption


def test_marks_follow_the_corrected_p_value_and_the_base() -> None:
    marks = {("rule", "forget/all"): "**", ("rule", "retain/all"): "*"}
    assert results.marks_of(EVALUATION.tests, "base") == marks
    assert results.marks_of(EVALUATION.tests, "other") == {("rule", "forget/all"): "**"}
    corrected = evaluation(tests=[paired("a", "b", "x", 0.1, 0.1, 0.001, p_holm=0.05)])
    assert results.marks_of(corrected.tests, "a") == {("b", "x"): ""}


def test_known_defects_stand_below_the_table() -> None:
    notes = results.published_notes(benchmarks()["tofu"].published.results)
    assert "† original: The p-value compares 300 truth ratios with 40" in notes
    assert "† RULE, ReRULE: 0.1322 is what saying only" in notes
    assert results.published_notes(()) == ""


def test_published_rows_use_columns_that_exist() -> None:
    for name, benchmark in benchmarks().items():
        for judged, rows in (("", benchmark.published.results), (JUDGED, benchmark.published.naturalness)):
            known = {column.metric for column in all_columns(f"{judged}{name}")}
            assert all(row.values.keys() <= known for row in rows)


def test_published_averages_are_those_of_their_parts() -> None:
    rwku = benchmarks()["rwku"].published
    for row in rwku.results:
        values = row.values
        forget = sum(values[f"forget/{mode}"] for mode in ("fb", "qa", "aa")) / 3
        assert abs(forget - values["forget/all"]) < 0.0011
        assert abs((values["retain/fb"] + values["retain/qa"]) / 2 - values["retain/all"]) < 0.0011
    for row in rwku.naturalness:
        *parts, total = row.values.values()
        assert abs(sum(parts) / 3 - total) < 0.11


def test_all_metrics_targets_and_tests_are_folded_tables() -> None:
    targets = (EVALUATION, evaluation(target="Ben", tests=[TESTS[0] | {"p_holm": 0.5, "facts": 4}]))
    section = results.results_section(Benchmark("rwku", "RWKU", targets), [], None)
    folded = {part.name: part for part in section.parts if getattr(part, "folded", False)}
    assert list(folded) == ["targets_rwku", "comparisons_rwku", "all_metrics_rwku"]
    assert list(texts(folded["targets_rwku"]))[:3] == ["Ada: base", "Ada: rule", "Ben: base"]
    assert list(texts(folded["all_metrics_rwku"])) == ["forget/all", "retain/all", "forget/fb"]
    assert "Numbers are means over 2 targets, each weighing the same: Ada, Ben." in section.parts[1]


def test_tests_have_the_form_of_their_metric() -> None:
    table = results.tests_table(evaluation(tests=[*TESTS[1:], TESTS[0] | {"p_holm": 0.5, "facts": 4}]))
    plain, _, corrected = ([cell_of(row, column)[0] for column in table.columns] for row in table.rows)
    assert plain == ["retain/all", "37.5", "0.04", "–", "10", "–"]
    assert corrected == ["forget/all", "50.0", "0.004", "0.5", "10", "4"]
    intervals = [cell_of(row, table.columns[1])[2] for row in table.rows]
    assert intervals == ["27.5–47.5", "-10.0 to 30.0", "40.0–60.0"]
    assert table.caption.endswith("What is resampled and exchanged is the fact.")


def test_numbers_that_are_no_fractions_are_named() -> None:
    made = evaluation(results={"base": {"forget/all": 0.5, "mia/forget/loss": 2.5, "fluency": 7.5}})
    assert results.all_metrics_table(made).caption == (
        "As in results.json: fractions of 1. fluency: bits. mia: nats a token, zlib also a byte."
    )
    assert results.all_metrics_table(EVALUATION).caption == "As in results.json: fractions of 1."


CHECKPOINTS = evaluation(
    results={
        "base": {"forget/all": 0.75, "retain/all": 0.875},
        "rule@0": {"forget/all": 0.5, "retain/all": 0.75, "forget/fb": 0.5},
        "rule@20": {"forget/all": 0.25, "retain/all": 0.5, "forget/fb": 0.25},
        "note@5": {"forget/all": 0.5},
    },
    anchors={"always refuses": {"forget/all": 0.125, "retain/all": 0.0}},
    intervals={
        "base": {"forget/all": (0.7, 0.85)},
        "rule@0": {"forget/all": (0.4, 0.55)},
        "rule@20": {"forget/all": (0.2, 0.3)},
    },
)


def test_scatter_draws_per_cent_with_intervals_hollow_anchors_and_the_newest_checkpoint(drawn) -> None:
    assert results.scatter_figure(CHECKPOINTS) is not None
    shown = {container.get_label(): container for container in drawn[0].axes[0].containers}
    assert list(shown) == ["base", "rule@20", "always refuses"]
    line, _, (bars,) = shown["base"]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([75.0], [87.5])
    assert [x for x, _ in bars.get_segments()[0]] == pytest.approx([70.0, 85.0])
    assert shown["always refuses"].lines[0].get_markerfacecolor() == "white"
    assert shown["base"].lines[0].get_markerfacecolor() != "white"


def test_progress_shows_each_checkpoint_at_its_step_with_the_replay_line(drawn) -> None:
    replayed = run_of("rule", [{}, {}, {"replay/updates": 1.0}], steps=(1, 2, 7))
    assert results.progress_figure(CHECKPOINTS, [replayed]) is not None
    panels = {axes.get_title(loc="left"): axes for axes in drawn[0].axes if axes.get_visible()}
    assert list(panels) == ["forget FB (%) ↓", "forget All (%) ↓", "neighbours All (%) ↑"]
    axes = panels["forget All (%) ↓"]
    line, _, (bars,) = axes.containers[0]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0, 20], [50.0, 25.0])
    assert [y for _, y in bars.get_segments()[0]] == pytest.approx([40.0, 55.0])
    starts = [line for line in axes.lines if "first replay" in str(line.get_label())]
    assert [list(line.get_xdata()) for line in starts] == [[7, 7]]


def test_a_benchmark_without_a_pair_has_no_figures() -> None:
    other = evaluation(benchmark="mine", results={"a": {"score": 1.0}}, anchors={})
    assert results.scatter_figure(other) is None
    assert results.progress_figure(other, []) is None
