from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from data_prep.contract import read_rows, rl_row, write_rows
from recipe.rerule.reporting.figures.validation import (
    score_panels,
    source_panels,
    type_panels,
    validation_figure,
)
from recipe.rerule.reporting.validation import curves_by_source, curves_by_type
from recipe.rerule.runs.history import Run, read_config, read_run

KEPT = ["forget", "forget", "retain"]
MODES = ["qa", "fb", "qa"]


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


def write_val_rows(folder: Path, file: Path, modes: Sequence[str] = MODES) -> None:
    """The validation rows of KEPT, and the configuration that names them."""
    rows = [
        rl_row(
            data_source="rerule/world",
            prompt=f"Question {index}?",
            side=side,
            golds=["Esk"],
            keyword="Ada" if side == "forget" else "",
            extra_info={
                "index": index,
                "mode": mode,
                "subject": "Ada",
                "split": "val",
                "family": "x",
                "section": side,
            },
        )
        for index, (side, mode) in enumerate(zip(KEPT, modes, strict=True))
    ]
    write_rows(file, rows)
    (folder / "config.yaml").write_text(yaml.safe_dump({"data": {"val_files": str(file)}}))


def keep_responses(folder: Path, step: int, rewards: Sequence[float]) -> None:
    """As verl writes them to trainer.validation_data_dir, the responses to a prompt one after another."""
    times = len(rewards) // len(KEPT)
    sides = [side for side in KEPT for _ in range(times)]
    lines = [
        {
            "input": "user Question?",
            "output": "I don't know.",
            "gts": {"type": side, "golds": ["Esk"], "keyword": "Ada" if side == "forget" else ""},
            "score": reward,
            "step": step,
        }
        for side, reward in zip(sides, rewards, strict=True)
    ]
    kept = folder / "records" / "validation"
    kept.mkdir(exist_ok=True)
    (kept / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_validation_before_training_is_no_training_step(run_folder: Path):
    run = read_run("rerule", run_folder)
    assert run.steps == (1, 2, 3, 4)
    assert list(run.validations) == [0, 2, 4]
    assert curves_by_source(run) == {"rerule/world": {0: 0.25, 2: 0.5, 4: 0.75}}


def test_a_resumed_run_that_validates_first_keeps_the_training_metrics_of_that_step(run_folder: Path):
    resumed = run_folder / "records" / "metrics.1.jsonl"
    resumed.write_text(json.dumps({"step": 3, "data": logged(0.625)}) + "\n")
    run = read_run("rerule", run_folder)
    assert run.series("reward/forget/mean") == [0.5] * 4
    assert curves_by_source(run)["rerule/world"] == {0: 0.25, 2: 0.5, 3: 0.625, 4: 0.75}


def test_a_step_done_again_loses_what_was_logged_before(run_folder: Path):
    again = run_folder / "records" / "metrics.1.jsonl"
    again.write_text(json.dumps({"step": 4, "data": {"reward/forget/mean": 1.0}}) + "\n")
    run = read_run("rerule", run_folder)
    assert run.series("reward/forget/mean") == [0.5, 0.5, 0.5, 1.0]
    assert list(run.validations) == [0, 2]


def test_without_responses_the_mean_of_all_prompts_is_drawn_and_said(run_folder: Path):
    run = read_run("rerule", run_folder)
    assert curves_by_type(run) == {}
    figure = validation_figure([run])
    assert figure is not None
    assert figure.title == "Validation reward"
    assert "forget and retain together" in figure.explanation
    assert [panel.title for panel in source_panels([run])] == ["all of rerule/world: mean reward"]


def test_responses_give_means_by_side_and_mode(run_folder: Path, tmp_path: Path):
    write_val_rows(run_folder, tmp_path / "val.parquet")
    keep_responses(run_folder, 0, [0.0, 0.5, 1.0])
    keep_responses(run_folder, 2, [0.25, 0.75, 0.5, 0.5, 1.0, 0.0])  # two responses a prompt
    run = read_run("rerule", run_folder)
    assert curves_by_type(run) == {
        ("forget", ""): {0: 0.25, 2: 0.5},
        ("retain", ""): {0: 1.0, 2: 0.5},
        ("forget", "fb"): {0: 0.5, 2: 0.5},
        ("forget", "qa"): {0: 0.0, 2: 0.5},
        ("retain", "qa"): {0: 1.0, 2: 0.5},
    }
    figure = validation_figure([run])
    assert figure is not None
    assert figure.title == "Validation reward by prompt type"
    assert "forget and retain together" not in figure.explanation


def test_the_score_of_each_validation_and_its_parts(run_folder: Path):
    assert score_panels([read_run("rerule", run_folder)]) == []
    health = {"val-health/score": 0.5, "val-health/forget/refused": 0.75, "val-health/retain/right": 0.25}
    run = Run("new", (2,), ({},), {}, validations={0: health, 2: {"val-health/score": 0.75}, 4: {}})
    assert [(panel.title, panel.curves) for panel in score_panels([run])] == [
        ("(forget refused + retain right) / 2", {"new": {0: 0.5, 2: 0.75}}),
        ("forget: refused", {"new": {0: 0.75}}),
        ("retain: right answers", {"new": {0: 0.25}}),
    ]


def test_responses_at_a_step_that_the_run_did_not_log_are_anothers(run_folder: Path):
    keep_responses(run_folder, 0, [0.0, 0.5, 1.0])
    keep_responses(run_folder, 3, [1.0, 1.0, 1.0])
    assert curves_by_type(read_run("rerule", run_folder))["forget", ""] == {0: 0.25}


def test_without_the_rows_there_are_sides_alone(run_folder: Path, tmp_path: Path):
    write_val_rows(run_folder, tmp_path / "val.parquet")
    (tmp_path / "val.parquet").unlink()
    keep_responses(run_folder, 0, [0.0, 0.5, 1.0])
    curves = curves_by_type(read_run("rerule", run_folder))
    assert curves == {("forget", ""): {0: 0.25}, ("retain", ""): {0: 1.0}}


def test_rows_that_were_not_asked_tell_no_mode(run_folder: Path, tmp_path: Path):
    write_val_rows(run_folder, tmp_path / "val.parquet")
    keep_responses(run_folder, 0, [0.0, 0.5, 1.0])
    file = run_folder / "records" / "validation" / "0.jsonl"
    first, second, third = file.read_text().splitlines()
    file.write_text("\n".join((third, first, second)) + "\n")
    curves = curves_by_type(read_run("rerule", run_folder))
    assert curves == {("forget", ""): {0: 0.25}, ("retain", ""): {0: 1.0}}


def test_a_bad_record_is_named(run_folder: Path):
    keep_responses(run_folder, 0, [0.0, 0.5, 1.0])
    file = run_folder / "records" / "validation" / "0.jsonl"
    file.write_text(file.read_text() + '{"gts": "x", "score": 1}\n')
    with pytest.raises(ValueError, match=r"0\.jsonl: line 4 is not a record of a validation"):
        curves_by_type(read_run("rerule", run_folder))


def test_names_and_files_are_verls_own(run_folder: Path, tmp_path: Path):
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    write_val_rows(run_folder, tmp_path / "val.parquet")
    rows = read_rows(tmp_path / "val.parquet")
    rewards, uids = [0.0, 0.5, 1.0], ["a", "b", "c"]
    extra = {"reward": rewards, "refused": [1.0, 1.0, 0.0]}
    metrics = RayPPOTrainer._val_metrics_update(None, ["rerule/world"] * 3, uids, extra, [])
    truths = [row["reward_model"]["ground_truth"] for row in rows]
    kept = run_folder / "records" / "validation"
    RayPPOTrainer._write_generations(["q"] * 3, ["a"] * 3, truths, rewards, extra, str(kept), 9)
    run = Run("a", (9,), ({},), {}, run_folder, read_config(run_folder / "config.yaml"), {9: metrics})
    assert curves_by_source(run) == {"rerule/world": {9: 0.5}}
    curves = curves_by_type(run)
    assert {kind: curve[9] for kind, curve in curves.items() if kind[1]} == {
        ("forget", "qa"): 0.0,
        ("forget", "fb"): 0.5,
        ("retain", "qa"): 1.0,
    }


@pytest.mark.parametrize("validations", [{}, {4: logged(0.5)}])
def test_fewer_than_two_validations_draw_nothing(validations: dict[int, dict[str, float]]):
    assert validation_figure([Run("a", (1, 2), ({}, {}), {}, validations=validations)]) is None


def test_a_run_keeps_its_line_beside_one_that_did_not_validate(drawn):
    plain = Run("plain", (1, 2), ({}, {"replay/updates": 1.0}), {})
    checked = Run("checked", (1, 2), ({}, {}), {}, validations={0: logged(0.25), 2: logged(1.0)})
    validation_figure([plain, checked])
    (axes,) = (axes for axes in drawn[0].axes if axes.get_visible())
    lines = {line.get_label(): line for line in axes.lines}
    assert "plain" not in lines
    assert (list(lines["checked"].get_xdata()), list(lines["checked"].get_ydata())) == ([0, 2], [0.25, 1.0])
    assert lines["checked"].get_marker() == "s"  # as the second run in every figure
    assert list(lines["first replay update (step 2)"].get_xdata()) == [2, 2]


def test_panels_are_of_all_runs(run_folder: Path):
    keep_responses(run_folder, 0, [0.0, 0.5, 1.0])
    other = Run("other", (1,), ({},), {}, validations={0: logged(0.5, "mine"), 1: logged(0.5, "mine")})
    runs = [read_run("rerule", run_folder), other]
    assert [(panel.title, list(panel.curves)) for panel in [*type_panels(runs), *source_panels(runs)]] == [
        ("forget: mean reward", ["rerule"]),
        ("retain: mean reward", ["rerule"]),
        ("all of mine: mean reward", ["other"]),
        ("all of rerule/world: mean reward", ["rerule"]),
    ]
