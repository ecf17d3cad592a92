"""Tables and figures of evaluations."""

from dataclasses import replace

import pytest

from recipe.rerule.evaluation.registry import benchmarks
from recipe.rerule.evaluation.table import JUDGED, all_columns
from recipe.rerule.reporting import results
from recipe.rerule.reporting.document import cell_of, value_of
from recipe.rerule.reporting.evaluations import Benchmark
from tests.report.made import evaluation, paired, run_of, texts

TESTS = [
    paired("base", "rule", "forget/all", 0.5, 0.1, 0.004),
    paired("base", "rule", "retain/all", 0.375, 0.1, 0.04),
    paired("rule", "other", "forget/all", 0.1, 0.2, 0.001),
]
INTERVALS = {"rule": {"forget/all": (0.2, 0.312)}, "always refuses": {"forget/all": (0.126, 0.126)}}
EVALUATION = evaluation(intervals=INTERVALS, tests=TESTS)


def test_a_row_has_marks_and_intervals_and_what_is_published_only_the_notes_of_its_rows():
    table = results.results_table(EVALUATION, "base")
    _, rule, refuses = table.rows[:3]
    _, forget, retain = table.columns
    assert (value_of(rule, forget), cell_of(rule, forget)) == (0.25, ("25.0", "**", "20.0–31.2"))
    assert cell_of(rule, retain) == ("50.0", "*", "")
    assert cell_of(refuses, forget) == ("12.6", "", "")  # its interval is the number itself
    tofu = evaluation(benchmark="tofu", results={"base": {"forget_Q_A_ROUGE": 0.5}}, anchors={})
    table = results.results_table(tofu, "base")
    assert [list(texts(table, "published").values())[row] for row in (0, -1)] == [["0.9851"], ["0.1322"]]
    assert "open-unlearning reports" in table.caption
    assert "is what saying only" in table.caption
    table = results.results_table(
        evaluation(benchmark="tofu", results={"base": {"retain_Q_A_ROUGE": 0.5}}, anchors={}), "base"
    )
    assert texts(table, "published") == {}
    assert "open-unlearning reports" not in table.caption


def test_marks_follow_the_corrected_p_value_and_the_base():
    corrected = [TESTS[0] | {"p_holm": 0.05, "facts": 4}, *TESTS[1:]]
    marks = results.marks_of(evaluation(tests=corrected).tests, "base")
    assert marks == {("rule", "forget/all"): "", ("rule", "retain/all"): "*"}
    assert results.marks_of(EVALUATION.tests, "rule") == {
        ("base", "forget/all"): "**", ("base", "retain/all"): "*", ("other", "forget/all"): "**",
    }  # fmt: skip


def test_what_is_published_has_columns():
    for name, benchmark in benchmarks().items():
        for judged, rows in (("", benchmark.published.results), (JUDGED, benchmark.published.naturalness)):
            known = {column.metric for column in all_columns(f"{judged}{name}")}
            assert all(row.values.keys() <= known for row in rows)


def test_targets_stand_below_their_mean():
    more = {"base": {"forget/all": 0.75, "mia/forget/loss": 2.5}, "rule": {"forget/all": 0.25}}
    targets = tuple(evaluation(results=more, target=name, tests=TESTS) for name in ("Ada", "Ben"))
    section = results.results_section(Benchmark("rwku", "RWKU", targets), [], None)
    folded = {part.name: part for part in section.parts if getattr(part, "folded", False)}
    assert list(folded) == ["targets_rwku", "comparisons_rwku", "all_metrics_rwku"]
    assert list(texts(folded["targets_rwku"]))[:3] == ["Ada: base", "Ada: rule", "Ben: base"]
    meta = {"probes": {"facts": {"forget": 40, "retain": 9}}}, {"probes": {"facts": {"forget": 3}}}
    few = tuple(replace(one, meta=of) for one, of in zip(targets, meta, strict=True))
    assert list(results.warnings_of([Benchmark("rwku", "RWKU", few)], None)) == [
        "RWKU: too few facts for intervals and tests, which need 6: forget (3)"
    ]
    units = "As in results.json: fractions of 1. mia: nats a token, zlib also a byte."
    assert folded["all_metrics_rwku"].caption == units
    assert "Numbers are means over 2 targets, each weighing the same: Ada, Ben." in section.parts[1]


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


def test_scatter_draws_per_cent_with_intervals_hollow_anchors_and_the_newest_checkpoint(drawn):
    assert results.scatter_figure(CHECKPOINTS) is not None
    shown = {container.get_label(): container for container in drawn[0].axes[0].containers}
    assert list(shown) == ["base", "rule@20", "always refuses"]
    assert "rule@0" in texts(results.results_table(CHECKPOINTS, "rule@0"))
    line, _, (bars,) = shown["base"]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([75.0], [87.5])
    assert [x for x, _ in bars.get_segments()[0]] == pytest.approx([70.0, 85.0])
    assert shown["always refuses"].lines[0].get_markerfacecolor() == "white"
    assert shown["base"].lines[0].get_markerfacecolor() != "white"


def test_progress_shows_each_checkpoint_at_its_step_with_the_replay_line(drawn):
    replayed = run_of("rule", [*[{}] * 6, {"replay/updates": 1.0}])
    assert results.progress_figure(CHECKPOINTS, [replayed]) is not None
    panels = {axes.get_title(loc="left"): axes for axes in drawn[0].axes if axes.get_visible()}
    assert list(panels) == ["forget FB (%) ↓", "forget All (%) ↓", "neighbours All (%) ↑"]
    axes = panels["forget All (%) ↓"]
    line, _, (bars,) = axes.containers[0]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0, 20], [50.0, 25.0])
    assert [y for _, y in bars.get_segments()[0]] == pytest.approx([40.0, 55.0])
    starts = [line for line in axes.lines if "first replay" in str(line.get_label())]
    assert [list(line.get_xdata()) for line in starts] == [[7, 7]]
    other = evaluation(benchmark="mine", results={"a": {"score": 1.0}}, anchors={})
    assert (results.scatter_figure(other), results.progress_figure(other, [])) == (None, None)
    assert texts(results.results_table(other, "a")) == {"a": ["1.000"]}
