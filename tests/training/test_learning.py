"""Warnings of runs that can learn, or have learnt, nothing; records are as a run writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipe.rerule.training import learning
from tests.made_runs import stage1_run, stage2_run
from tests.training.test_sizes import rows_file, stage1, stage2

pytestmark = pytest.mark.usefixtures("_registered")


@pytest.fixture
def _registered() -> None:
    from recipe.rerule.training import sizes

    sizes.register()


def warnings(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(line.startswith("warning: ") for line in captured.err.splitlines())
    return [line.removeprefix("warning: ") for line in captured.err.splitlines()]


@pytest.mark.parametrize(
    ("scores", "told"),
    [
        ([0.6, 0.55, 0.5], "(forget refused + retain right) / 2 was 0.60 there and 0.55 at best, at step 5;"),
        ([0.6, 0.6], "at step 5;"),
        ([0.6, 0.5, 0.7], ""),
        ([0.6], ""),
        ([None, 0.5], ""),
    ],
)
def test_a_run_that_validates_no_better_than_its_start(
    scores: list[float | None], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = stage2_run(tmp_path, (0.1, 0.8))
    lines = [
        json.dumps({"step": 5 * place, "data": {"val-health/score": score}}) + "\n"
        for place, score in enumerate(scores)
        if score is not None
    ]
    with (tmp_path / "records" / "metrics.jsonl").open("a") as file:
        file.writelines(lines)
    learning.after_stage2(config)
    found = warnings(capsys)
    assert len(found) == bool(told)
    assert all(
        text.startswith("no validation was better than the one before") and told in text for text in found
    )


def test_records_that_cannot_be_read_do_not_fail_a_finished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = stage2_run(tmp_path, (0.1, 0.8))
    (tmp_path / "records" / "metrics.jsonl").write_text("no json\n{}\n")
    learning.after_stage2(config)
    (found,) = warnings(capsys)
    assert found.startswith("what the run has learnt is not known: ")
    config = stage1_run(tmp_path / "stage1", [2.0, 2.0])
    (tmp_path / "stage1" / "records" / "metrics.jsonl").unlink()  # trainer.logger=[console]
    learning.after_stage1(config)
    assert warnings(capsys) == []


def test_the_rates_of_the_default_stage_1_on_13_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0, 1 and 2 twentieths of 4e-7."""
    file = rows_file(tmp_path, 13)
    config = stage1(f"data.train_files={file}", experiment=None)
    assert learning.planned_steps(config) == 3
    assert learning.rate_sum(config.optim, 3) == pytest.approx(6e-8)
    learning.before_stage1(config)
    (found,) = warnings(capsys)
    assert found.startswith("the learning rates of the 3 steps add up to 6.0e-08 (optim.lr is 4e-07)")
    learning.before_stage1(stage1(f"data.train_files={file}"))
    assert warnings(capsys) == []


def test_the_rates_of_stage_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = rows_file(tmp_path, 30)
    config = stage2(f"data.train_files={file}")
    learning.before_stage2(config)  # 42 steps of 2e-6
    assert warnings(capsys) == []
    assert learning.plan(config) == "42 steps, batch 8, 30 rows, at most 14 epochs"
    learning.before_stage2(stage2(f"data.train_files={file}", "actor_rollout_ref.actor.optim.lr=2e-8"))
    (found,) = warnings(capsys)
    assert "42 steps add up to 8.4e-07 (actor_rollout_ref.actor.optim.lr is 2e-08)" in found


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["trainer.total_training_steps=15"], "replay starts at step 16 of 15, so this run is RULE without"),
        (["trainer.total_training_steps=16"], None),
        (["trainer.total_training_steps=15", "replay.enable=false"], None),
        # Half of 20 steps x 8 prompts.
        (["trainer.total_training_steps=20", "replay.min_groups=80"], None),
        (["trainer.total_training_steps=20", "replay.min_groups=81"], "and this run stores about 80 at most"),
        (["trainer.total_training_steps=20", "replay.min_groups=81", "replay.admission=all"], None),
    ],
)
def test_a_replay_that_cannot_start_is_said_before_the_run(
    settings: list[str], told: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rows_file(tmp_path, 80)
    rates = ["actor_rollout_ref.actor.optim.lr=1e-4", "data.train_batch_size=8"]
    learning.before_stage2(stage2(f"data.train_files={file}", *rates, *settings, experiment="rwku"))
    found = warnings(capsys)
    assert [told in text for text in found if told] == [True] * bool(told)
    assert len(found) == bool(told)


@pytest.mark.parametrize("benchmark", ["rwku", "tofu", "muse_books", "muse_news", "tiny"])
def test_the_benchmarks_own_rates_are_enough(
    benchmark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rows_file(tmp_path, 80)  # TOFU's, the fewest
    learning.before_stage1(stage1(f"data.train_files={file}", experiment=benchmark))
    learning.before_stage2(stage2(f"data.train_files={file}", "replay.enable=false", experiment=benchmark))
    assert warnings(capsys) == []


def test_a_cosine_is_half_its_peak_on_average() -> None:
    optim = {"lr": 1.0, "lr_warmup_steps": 4, "lr_warmup_steps_ratio": 0.0, "lr_scheduler_type": "cosine"}
    # 0 + 1/4 + 2/4 + 3/4, then 6 halves
    assert learning.rate_sum(OmegaConf.create(optim), 10) == pytest.approx(1.5 + 3)
    share = optim | {"lr_warmup_steps": -1, "lr_warmup_steps_ratio": 0.4, "lr_scheduler_type": "constant"}
    assert learning.rate_sum(OmegaConf.create(share), 10) == pytest.approx(1.5 + 6)
