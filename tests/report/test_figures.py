from __future__ import annotations

import io
import math

import matplotlib.image
import pytest

from recipe.rerule.reporting.evaluations import Evaluation
from recipe.rerule.reporting.figures import benchmark, style, training
from recipe.rerule.runs.history import Prompt, Run, Visit


def run_of(name: str, metrics: list[dict[str, float]], prompts: dict[int, Prompt] | None = None) -> Run:
    return Run(name, tuple(range(1, len(metrics) + 1)), tuple(metrics), prompts or {})


def prompt(index: int, *rewards: float) -> Prompt:
    return Prompt(index, "forget", "qa", "Ada", tuple(Visit(i, r) for i, r in enumerate(rewards, start=1)))


RULE = run_of("rule", [{"reward/forget/mean": 0.5, "replay/hard_share": 0.5}] * 4, {1: prompt(1, 0.0, 0.5)})
RERULE = run_of(
    "rerule",
    [
        {"reward/forget/mean": 0.5, "replay/updates": 0, "replay/size": 1},
        {
            "reward/forget/mean": 0.75,
            "replay/updates": 1,
            "replay/effective_sample_size": 0.9,
            "replay/size": 2,
        },
        {"reward/forget/mean": 0.75, "replay/updates": 0, "replay/size": 3},
        {
            "reward/forget/mean": 1.0,
            "replay/updates": 1,
            "replay/effective_sample_size": 0.8,
            "replay/size": 4,
        },
    ],
    {1: prompt(1, 0.25, 1.0), 2: prompt(2, 0.0)},
)


def lines_of(axes) -> dict[str, list[float]]:
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines}


def test_rewards_are_drawn_with_the_line_where_replay_starts(drawn):
    training.reward_figure([RULE, RERULE])
    forget, retain = drawn[0].axes[:2]
    lines = lines_of(forget)
    assert lines["rule"] == [0.5, 0.5, 0.5, 0.5]
    assert lines["rerule"] == [0.5, 0.75, 0.75, 1.0]
    start = next(line for line in forget.lines if line.get_label() == "first replay update (step 2)")
    assert list(start.get_xdata()) == [2, 2]
    assert [text.get_text() for text in retain.texts] == ["not recorded"]
    assert list(forget.texts) == []


def test_runs_differ_without_colour(drawn):
    runs = [run_of(name, [{"reward/forget/mean": 1.0}]) for name in "abcdef"]
    assert len(runs) == style.MAX_LINES
    training.reward_figure(runs)
    styles = [(str(line._dash_pattern), line.get_marker()) for line in drawn[0].axes[0].lines]
    assert len({dashes for dashes, _ in styles}) == len({marker for _, marker in styles}) == len(runs)


def test_sparse_metric_leaves_gaps_and_marks_every_point(drawn):
    training.replay_figure([RULE, RERULE])
    effective = drawn[0].axes[7]
    line = next(line for line in effective.lines if line.get_label() == "rerule")
    values = line.get_ydata()
    assert (values[1], values[3]) == (0.9, 0.8)
    assert math.isnan(values[0])
    assert math.isnan(values[2])
    assert line.get_markevery() == 1


def test_the_figure_of_responses_has_the_panels_that_were_logged(drawn):
    assert training.health_figure([RULE, RERULE]) is None
    logged = {"mixed/forget/mean": 0.5, "empty/retain/mean": 0.25, "tokens/forget/mean": 12.0}
    run = run_of("new", [logged, logged | {"empty/retain/mean": 0.75}])
    figure = training.health_figure([RULE, run])
    assert figure is not None
    shown = [axes for axes in drawn[0].axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in shown] == [
        "retain: empty",
        "forget: mixed groups",
        "forget: tokens of a response",
    ]
    assert lines_of(shown[0])["new"] == [0.25, 0.75]
    assert [one.name for one in training.training_figures([run])] == ["reward_by_type", "health", "replay"]


def test_hardest_prompts_have_one_diagram_each_with_all_runs(drawn):
    training.hardest_figure([RULE, RERULE], [1])
    shown = [axes for axes in drawn[0].axes if axes.get_visible()]
    assert len(shown) == 1
    assert lines_of(shown[0])["rule"] == [0.0, 0.5]
    assert lines_of(shown[0])["rerule"] == [0.25, 1.0]
    assert "Ada" in shown[0].get_title(loc="left")


def test_figures_without_prompt_records_leave_out_the_hardest(drawn):
    without = run_of("other", [{"reward/forget/mean": 1.0}])
    assert [figure.name for figure in training.training_figures([RULE, without])] == [
        "reward_by_type",
        "replay",
    ]
    both = [figure.name for figure in training.training_figures([RULE, RERULE])]
    assert both == ["reward_by_type", "replay", "hardest_prompts"]


def test_figures_are_images_with_alternative_texts_and_the_same_bytes_each_time():
    first, second = training.reward_figure([RULE, RERULE]), training.reward_figure([RULE, RERULE])
    assert (first.png, first.narrow_png) == (second.png, second.narrow_png)
    height, width = matplotlib.image.imread(io.BytesIO(first.png)).shape[:2]
    narrow_height, narrow_width = matplotlib.image.imread(io.BytesIO(first.narrow_png)).shape[:2]
    assert width > 1000
    assert narrow_width == width / 2
    assert narrow_height > height  # its panels are under each other
    assert "rule and rerule" in first.alt
    assert "rerule makes its first replay update at step 2" in first.alt
    assert "rule makes no replay update" in first.alt


def test_a_name_may_hold_dollar_signs():
    run = run_of(r"$\nothing$ <b>", [{"reward/forget/mean": 0.5}])
    assert training.reward_figure([run]).png.startswith(b"\x89PNG")


def test_rewards_have_a_panel_for_each_prompt_type_that_any_run_trained_on():
    runs = [run_of("a", [{"reward/forget/fb/mean": 1.0}]), run_of("b", [{"reward/retain/qa/mean": 1.0}])]
    assert [panel.metrics for panel in training.reward_panels(runs)] == [
        ("reward/forget/mean",),
        ("reward/retain/mean",),
        ("reward/forget/fb/mean",),
        ("reward/retain/qa/mean",),
    ]


def test_clipped_share_adds_both_sides():
    panel = next(panel for panel in training.REPLAY_PANELS if "clipped" in panel.title)
    run = run_of("a", [{"replay/clipped_low": 0.25, "replay/clipped_high": 0.125}, {}])
    values = panel.values(run)
    assert values[0] == 0.375
    assert math.isnan(values[1])


def test_replay_that_starts_at_different_steps_is_named_by_run(drawn):
    late = run_of("late", [{"replay/updates": 0}] * 3 + [{"replay/updates": 1}])
    training.reward_figure([RERULE, late])
    labels = [line.get_label() for line in drawn[0].axes[0].lines]
    assert "first replay update of rerule (step 2)" in labels
    assert "first replay update of late (step 4)" in labels


EVALUATION = Evaluation(
    benchmark="rwku",
    target="x",
    folders=(),
    probes_key="k",
    convention="rwku",
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


def test_scatter_has_models_newest_checkpoints_and_constant_answers():
    points = {point.name: point for point in benchmark.scatter_points(EVALUATION)}
    assert list(points) == ["base", "rule@20", "always refuses"]
    assert (points["base"].x, points["base"].y, points["base"].x_interval) == (0.75, 0.875, (0.7, 0.85))
    assert points["always refuses"].anchor
    assert not points["base"].anchor


def test_scatter_draws_per_cent_with_intervals_and_hollow_anchors(drawn):
    figure = benchmark.scatter_figure(EVALUATION)
    assert figure is not None
    axes = drawn[0].axes[0]
    shown = {container.get_label(): container for container in axes.containers}
    line, _, (bars,) = shown["base"]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([75.0], [87.5])
    segment = bars.get_segments()[0]
    assert [x for x, _ in segment] == pytest.approx([70.0, 85.0])
    assert shown["always refuses"].lines[0].get_markerfacecolor() == "white"
    assert "base at 75, 87.5" in figure.alt


def test_a_benchmark_without_a_pair_has_no_scatter():
    other = Evaluation("mine", "x", (), "k", "", {"a": {"score": 1.0}}, {})
    assert benchmark.scatter_figure(other) is None
    assert benchmark.progress_figure(other, []) is None


def test_progress_shows_each_checkpoint_at_its_step_with_the_replay_line(drawn):
    replayed = Run("rule", (1, 2, 7), ({}, {}, {"replay/updates": 1.0}), {})
    figure = benchmark.progress_figure(EVALUATION, [replayed])
    assert figure is not None
    panels = {axes.get_title(loc="left"): axes for axes in drawn[0].axes if axes.get_visible()}
    assert list(panels) == ["forget FB (%) ↓", "forget All (%) ↓", "neighbours All (%) ↑"]
    axes = panels["forget All (%) ↓"]
    container = axes.containers[0]
    assert (list(container.lines[0].get_xdata()), list(container.lines[0].get_ydata())) == (
        [0, 20],
        [50.0, 25.0],
    )
    assert [list(line.get_xdata()) for line in axes.lines if "first replay" in str(line.get_label())] == [
        [7, 7]
    ]


def test_legend_takes_as_many_columns_as_fit():
    assert style._legend_columns([1.0, 1.0, 1.0], 3.0) == 3
    assert style._legend_columns([2.0, 1.0, 1.0], 3.5) == 2
    # Three columns would hold (1, 2), (3), (3): 2 + 3 + 3 is too wide. Two: (1, 2), (3, 3).
    assert style._legend_columns([1.0, 2.0, 3.0, 3.0], 7.0) == 2
    assert style._legend_columns([9.0, 1.0], 3.0) == 1
