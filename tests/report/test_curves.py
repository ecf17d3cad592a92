"""Figures of training, and how figures look."""

import io
import math
from collections.abc import Sequence

import matplotlib.image

from recipe.rerule.reporting.curves import training_figures, validation_panels
from recipe.rerule.runs.history import Run, read_run
from tests.data_prep.raw_files import put_lines
from tests.report.made import groups_of, run_of

STEPS = [{"reward/forget/mean": 0.5}] * 4
REPLAYED = {"replay/updates": 1, "replay/effective_sample_size": 0.9, "replay/clipped_low": 0.25}


RULE = run_of("rule", STEPS, groups=groups_of({(1, "forget"): {1: 0.0, 2: 0.5}}))
RERULE = run_of(
    "rerule",
    [
        {"reward/forget/mean": 0.5, "replay/updates": 0},
        {"reward/forget/mean": 0.75, "replay/clipped_high": 0.125, **REPLAYED},
        {"reward/forget/mean": 0.75, "replay/updates": 0},
        {"reward/forget/fb/mean": 1.0, **REPLAYED, "replay/effective_sample_size": 0.8},
    ],
    groups=groups_of({(1, "forget"): {1: 0.25, 2: 1.0}, (2, "forget"): {1: 0.0}}),
)


def names_of(runs: Sequence[Run]) -> list[str]:
    return [figure.name for figure in training_figures(runs)]


def lines_of(canvas) -> dict[str, dict[str, list[float]]]:
    """{title: {label: values, without gaps}} of the panels that a figure shows."""
    return {
        axes.get_title(loc="left"): {
            line.get_label(): [float(one) for one in line.get_ydata() if not math.isnan(one)]
            for line in axes.lines
        }
        for axes in canvas.axes
        if axes.get_visible()
    }


def test_rewards_replay_and_the_hardest_prompts(drawn):
    """A metric of some steps leaves gaps, and marks every point."""
    assert names_of([RULE, RERULE]) == ["reward_by_type", "replay", "hardest_prompts"]
    rewards, replay, hardest = (lines_of(canvas) for canvas in drawn)
    assert list(rewards) == ["forget: mean reward", "retain: mean reward", "forget, fb: mean reward"]
    assert rewards["forget: mean reward"]["rule"] == [0.5] * 4
    assert rewards["forget: mean reward"]["rerule"] == [0.5, 0.75, 0.75]
    forget, retain = drawn[0].axes[:2]
    start = next(line for line in forget.lines if line.get_label() == "first replay update (step 2)")
    assert list(start.get_xdata()) == [2, 2]
    assert [[text.get_text() for text in axes.texts] for axes in (forget, retain)] == [[], ["not recorded"]]
    assert replay["effective sample size of the weights"]["rerule"] == [0.9, 0.8]
    line = next(line for line in drawn[1].axes[7].lines if line.get_label() == "rerule")
    assert line.get_markevery() == 1
    # Both sides of the clipped share are added, and it is unknown where one of them is.
    assert replay["clipped share of the ratios"]["rerule"] == [0.375]
    assert {name: hardest["forget · qa · Ada (#1)"][name] for name in ("rule", "rerule")} == {
        "rule": [0.0, 0.5], "rerule": [0.25, 1.0],
    }  # fmt: skip
    names_of([run_of("late", [*STEPS[:3], STEPS[3] | {"replay/updates": 1}]), RERULE])
    labels = [line.get_label() for line in drawn[3].axes[0].lines[2:]]
    assert labels == ["first replay update of rerule (step 2)", "first replay update of late (step 4)"]


def test_the_figure_of_responses_has_the_panels_that_were_logged(drawn):
    logged = {"mixed/forget/mean": 0.5, "empty/retain/mean": 0.25, "tokens/forget/mean": 12.0}
    assert names_of([run_of("new", [logged, logged])]) == ["reward_by_type", "health", "replay"]
    titles = ["retain: empty", "forget: mixed groups", "forget: tokens of a response"]
    assert list(lines_of(drawn[1])) == titles
    assert [axes.get_ylim()[1] > 1.5 for axes in drawn[1].axes[:3]] == [False, False, True]


def test_figures_are_images_with_alternative_texts_and_the_same_bytes_each_time(monkeypatch):
    monkeypatch.undo()  # figures are rendered
    named = run_of(r"$\nothing$ <b>", RERULE.metrics.to_dict("records"))  # a name may hold dollar signs
    runs = [RULE, named]
    first, second = (next(training_figures(runs)) for _ in range(2))
    assert first.png == second.png
    assert matplotlib.image.imread(io.BytesIO(first.png)).shape[1] > 1000
    assert "rule makes no replay update" in first.alt
    assert "<b> makes its first replay update at step 2" in first.alt


def logged(reward: float, source: str = "rerule/world") -> dict[str, float]:
    """What verl logs of a validation with one response a prompt."""
    aux = {f"val-aux/{source}/refused/mean@1": 0.5}
    return {f"val-core/{source}/reward/mean@1": reward, **aux}


def curves_of(*runs: Run) -> dict[str, dict[str, dict[int, float]]]:
    """{title: {run: value by step}}."""
    return {
        panel.title: {name: curve.to_dict() for name, curve in panel.curves.items()}
        for panel in validation_panels(runs)
    }


def test_validations_are_by_step_and_a_resumed_run_may_begin_with_one(tmp_path, drawn):
    """Step 0 is before training; of the step that is logged again, its training metrics stay."""
    trained = {step: {"reward/forget/mean": 0.5, "replay/updates": float(step > 2)} for step in (1, 2, 3, 4)}
    validated = {0: logged(0.25), 2: logged(0.5), 4: logged(0.75)}
    lines = [{"step": step, "data": trained.get(step, {}) | validated.get(step, {})} for step in range(5)]
    put_lines(tmp_path / "records/metrics.jsonl", lines)
    put_lines(tmp_path / "records/metrics.1.jsonl", [{"step": 3, "data": logged(0.625)}])
    run = read_run("rerule", tmp_path)
    assert run.series("reward/forget/mean").to_dict() == dict.fromkeys((1, 2, 3, 4), 0.5)
    title = "all of rerule/world: mean reward"
    assert curves_of(run) == {title: {"rerule": {0: 0.25, 2: 0.5, 3: 0.625, 4: 0.75}}}
    # A run keeps its line next to one that validated less than twice.
    assert "validation_reward" in names_of([run_of("plain", STEPS, validations={4: logged(0.5)}), run])
    (axes,) = (axes for axes in drawn[-1].axes if axes.get_visible())
    line, start = axes.lines
    assert (line.get_label(), line.get_marker(), list(line.get_xdata())) == ("rerule", "s", [0, 2, 3, 4])
    assert (start.get_label(), list(start.get_xdata())) == ("first replay update (step 3)", [3, 3])


def test_the_score_of_each_validation_and_its_parts_come_first():
    health = {"val-health/score": 0.5, "val-health/forget/refused": 0.75, "val-health/retain/right": 0.25}
    run = run_of("new", [{}], validations={0: health, 2: {"val-health/score": 0.75}, 4: logged(0.5, "mine")})
    assert curves_of(run, run_of("other", [{}], validations={1: logged(0.25, "mine")})) == {
        "(forget refused + retain right) / 2": {"new": {0: 0.5, 2: 0.75}},
        "forget: refused": {"new": {0: 0.75}},
        "retain: right answers": {"new": {0: 0.25}},
        "all of mine: mean reward": {"new": {4: 0.5}, "other": {1: 0.25}},
    }
