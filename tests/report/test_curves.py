"""Figures of training, and how figures look."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.image
import pytest

from recipe.rerule.reporting import style
from recipe.rerule.reporting.curves import training_figures, validation_panels
from recipe.rerule.reporting.document import Figure
from recipe.rerule.runs.history import Prompt, Run, Visit, read_run
from tests.report.made import run_of


def prompt(index: int, *rewards: float) -> Prompt:
    return Prompt(index, "forget", "qa", "Ada", tuple(Visit(i, r) for i, r in enumerate(rewards, start=1)))


RULE = run_of(
    "rule", [{"reward/forget/mean": 0.5, "replay/hard_share": 0.5}] * 4, prompts={1: prompt(1, 0.0, 0.5)}
)
REPLAYED = {"replay/updates": 1, "replay/effective_sample_size": 0.9, "replay/clipped_low": 0.25}
RERULE = run_of(
    "rerule",
    [
        {"reward/forget/mean": 0.5, "replay/updates": 0},
        {"reward/forget/mean": 0.75, "replay/clipped_high": 0.125, **REPLAYED},
        {"reward/forget/mean": 0.75, "replay/updates": 0},
        {"reward/forget/mean": 1.0, **REPLAYED, "replay/effective_sample_size": 0.8},
    ],
    prompts={1: prompt(1, 0.25, 1.0), 2: prompt(2, 0.0)},
)


def drawn_figures(runs: Sequence[Run]) -> dict[str, Figure]:
    return {figure.name: figure for figure in training_figures(runs)}


def panels_of(canvas) -> dict[str, Mapping[str, list[float]]]:
    """{title: {label: values}} of the panels that a figure shows."""
    return {
        axes.get_title(loc="left"): {line.get_label(): list(line.get_ydata()) for line in axes.lines}
        for axes in canvas.axes
        if axes.get_visible()
    }


def test_rewards_are_drawn_with_the_line_where_replay_starts(drawn) -> None:
    assert list(drawn_figures([RULE, RERULE])) == ["reward_by_type", "replay", "hardest_prompts"]
    forget, retain = drawn[0].axes[:2]
    lines = panels_of(drawn[0])["forget: mean reward"]
    assert (lines["rule"], lines["rerule"]) == ([0.5] * 4, [0.5, 0.75, 0.75, 1.0])
    start = next(line for line in forget.lines if line.get_label() == "first replay update (step 2)")
    assert list(start.get_xdata()) == [2, 2]
    assert [text.get_text() for text in retain.texts] == ["not recorded"]
    assert list(forget.texts) == []


def test_a_metric_of_some_steps_leaves_gaps_and_marks_every_point(drawn) -> None:
    drawn_figures([RULE, RERULE])
    replay = drawn[2]  # after the wide and the narrow form of the rewards
    line = next(line for line in replay.axes[7].lines if line.get_label() == "rerule")
    assert [value for value in line.get_ydata() if not math.isnan(value)] == [0.9, 0.8]
    assert line.get_markevery() == 1
    # Both sides of the clipped share are added, and it is unknown where one of them is.
    clipped = panels_of(replay)["clipped share of the ratios"]["rerule"]
    assert [value for value in clipped if not math.isnan(value)] == [0.375]


def test_runs_differ_without_colour(drawn) -> None:
    runs = [run_of(name, [{"reward/forget/mean": 1.0}]) for name in "abcdef"]
    assert len(runs) == style.MAX_LINES
    drawn_figures(runs)
    styles = [(str(line._dash_pattern), line.get_marker()) for line in drawn[0].axes[0].lines]
    assert len({dashes for dashes, _ in styles}) == len({marker for _, marker in styles}) == len(runs)


def test_the_figure_of_responses_has_the_panels_that_were_logged(drawn) -> None:
    logged = {"mixed/forget/mean": 0.5, "empty/retain/mean": 0.25, "tokens/forget/mean": 12.0}
    run = run_of("new", [logged, logged | {"empty/retain/mean": 0.75}])
    assert list(drawn_figures([run])) == ["reward_by_type", "health", "replay"]
    health = panels_of(drawn[2])
    assert list(health) == ["retain: empty", "forget: mixed groups", "forget: tokens of a response"]
    assert health["retain: empty"]["new"] == [0.25, 0.75]
    assert [axes.get_ylim()[1] > 1.5 for axes in drawn[2].axes[:3]] == [False, False, True]


def test_hardest_prompts_have_one_diagram_each_with_all_runs(drawn) -> None:
    drawn_figures([RULE, RERULE])
    ((title, lines),) = panels_of(drawn[4]).items()
    assert title == "forget · qa · Ada (#1)"
    assert (lines["rule"], lines["rerule"]) == ([0.0, 0.5], [0.25, 1.0])


def test_figures_are_images_with_alternative_texts_and_the_same_bytes_each_time() -> None:
    runs = [RULE, run_of(r"$\nothing$ <b>", RERULE.metrics)]  # a name may hold dollar signs
    first, second = (next(training_figures(runs)) for _ in range(2))
    assert (first.png, first.narrow_png) == (second.png, second.narrow_png)
    height, width = matplotlib.image.imread(io.BytesIO(first.png)).shape[:2]
    narrow_height, narrow_width = matplotlib.image.imread(io.BytesIO(first.narrow_png)).shape[:2]
    assert width > 1000
    assert narrow_width == width / 2
    assert narrow_height > height  # its panels are under each other
    assert "rule makes no replay update" in first.alt
    assert "<b> makes its first replay update at step 2" in first.alt


def test_rewards_have_a_panel_for_each_prompt_type_that_any_run_trained_on(drawn) -> None:
    runs = [run_of("a", [{"reward/forget/fb/mean": 1.0}]), run_of("b", [{"reward/retain/qa/mean": 1.0}])]
    drawn_figures(runs)
    assert list(panels_of(drawn[0])) == [
        *("forget: mean reward", "retain: mean reward"),
        *("forget, fb: mean reward", "retain, qa: mean reward"),
    ]


def test_replay_that_starts_at_different_steps_is_named_by_run(drawn) -> None:
    late = run_of("late", [{"replay/updates": 0}] * 3 + [{"replay/updates": 1}])
    drawn_figures([RERULE, late])
    labels = [line.get_label() for line in drawn[0].axes[0].lines]
    assert "first replay update of rerule (step 2)" in labels
    assert "first replay update of late (step 4)" in labels


# Validation.


def logged(reward: float, source: str = "rerule/world") -> dict[str, float]:
    """What verl logs of a validation with one response a prompt."""
    return {
        f"val-core/{source}/reward/mean@1": reward,
        f"val-aux/{source}/score/mean@1": reward,
        f"val-aux/{source}/refused/mean@1": 0.125,
        "val-aux/num_turns/mean": 2.0,
    }


@pytest.fixture
def run_folder(write_run) -> Path:
    """Validations at steps 0, 2 and 4 of four steps; replay from step 3 on."""
    trained = {step: {"reward/forget/mean": 0.5, "replay/updates": float(step > 2)} for step in (1, 2, 3, 4)}
    validated = {0: logged(0.25), 2: logged(0.5), 4: logged(0.75)}
    steps = sorted(trained.keys() | validated.keys())
    lines = [{"step": step, "data": trained.get(step, {}) | validated.get(step, {})} for step in steps]
    return write_run("rerule", lines)


def curves_of(runs: Sequence[Run]) -> dict[str, dict[str, dict[int, float]]]:
    """{title: {run: value by step}}."""
    return {
        panel.title: {name: curve.to_dict() for name, curve in panel.curves.items()}
        for panel in validation_panels(runs)
    }


def test_validation_before_training_is_no_training_step(run_folder: Path, drawn) -> None:
    run = read_run("rerule", run_folder)
    assert run.steps == (1, 2, 3, 4)
    assert curves_of([run]) == {"all of rerule/world: mean reward": {"rerule": {0: 0.25, 2: 0.5, 4: 0.75}}}
    assert "validation_reward" in drawn_figures([run])


def test_a_resumed_run_that_validates_first_keeps_the_training_metrics_of_that_step(run_folder: Path) -> None:
    resumed = run_folder / "records" / "metrics.1.jsonl"
    resumed.write_text(json.dumps({"step": 3, "data": logged(0.625)}) + "\n")
    run = read_run("rerule", run_folder)
    assert run.series("reward/forget/mean") == [0.5] * 4
    (curves,) = curves_of([run]).values()
    assert curves["rerule"] == {0: 0.25, 2: 0.5, 3: 0.625, 4: 0.75}


def test_names_are_verls_own() -> None:
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    extra = {"reward": [0.0, 0.5, 1.0], "refused": [1.0, 1.0, 0.0]}
    uids = ["a", "b", "c"]
    metrics = RayPPOTrainer._val_metrics_update(None, ["rerule/world"] * 3, uids, extra, [])
    run = run_of("a", [{}], validations={9: metrics})
    assert curves_of([run]) == {"all of rerule/world: mean reward": {"a": {9: 0.5}}}


def test_the_score_of_each_validation_and_its_parts_come_first() -> None:
    health = {"val-health/score": 0.5, "val-health/forget/refused": 0.75, "val-health/retain/right": 0.25}
    run = run_of("new", [{}], validations={0: health, 2: {"val-health/score": 0.75}, 4: logged(0.5, "mine")})
    assert curves_of([run, run_of("other", [{}], validations={1: logged(0.25, "mine")})]) == {
        "(forget refused + retain right) / 2": {"new": {0: 0.5, 2: 0.75}},
        "forget: refused": {"new": {0: 0.75}},
        "retain: right answers": {"new": {0: 0.25}},
        "all of mine: mean reward": {"new": {4: 0.5}, "other": {1: 0.25}},
    }


@pytest.mark.parametrize("validations", [{}, {4: logged(0.5)}])
def test_fewer_than_two_validations_draw_nothing(validations: dict[int, dict[str, float]], drawn) -> None:
    assert "validation_reward" not in drawn_figures([run_of("a", [{}, {}], validations=validations)])


def test_a_run_keeps_its_line_next_to_one_that_did_not_validate(drawn) -> None:
    plain = run_of("plain", [{}, {"replay/updates": 1.0}])
    checked = run_of("checked", [{}, {}], validations={0: logged(0.25), 2: logged(1.0)})
    drawn_figures([plain, checked])
    (axes,) = (axes for axes in drawn[-1].axes if axes.get_visible())
    lines = {line.get_label(): line for line in axes.lines}
    assert "plain" not in lines
    assert (list(lines["checked"].get_xdata()), list(lines["checked"].get_ydata())) == ([0, 2], [0.25, 1.0])
    assert lines["checked"].get_marker() == "s"  # as the second run in every figure
    assert list(lines["first replay update (step 2)"].get_xdata()) == [2, 2]
