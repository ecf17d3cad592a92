"""Warnings of runs that can learn, or have learnt, nothing; records are as a run writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from recipe.rerule import learning
from tests.test_sizes import rows_file, stage1, stage2

pytestmark = pytest.mark.usefixtures("_registered")


@pytest.fixture
def _registered() -> None:
    from recipe.rerule import sizes

    sizes.register()


def stage1_run(folder: Path, losses: Sequence[float]) -> DictConfig:
    put_lines(folder, "metrics.jsonl", [{"train/loss": loss} for loss in losses])
    return OmegaConf.create({"trainer": {"default_local_dir": str(folder)}})


def put_lines(folder: Path, name: str, steps: Sequence[dict[str, Any]], key: str = "data") -> None:
    (folder / "records").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, key: content}) for step, content in enumerate(steps, start=1)]
    (folder / "records" / name).write_text("\n".join(lines) + "\n")


def stage2_run(
    folder: Path,
    forget: Sequence[float],
    *,
    updates: float = 1.0,
    no_signal: float = 0.5,
    refused: float = 0.5,
    size: float = 20,
    **replay: Any,
) -> DictConfig:
    """A run with these forget rewards, one prompt a step, and a retain prompt that always earns 1."""
    metrics = {
        "replay/updates": updates,
        "replay/zero_signal_share": no_signal,
        "refused/forget/mean": refused,
        "replay/size": size,
    }
    put_lines(folder, "metrics.jsonl", [metrics] * len(forget))
    prompts = [[prompt(0, "forget", reward), prompt(1, "retain", 1.0)] for reward in forget]
    put_lines(folder, "prompts.jsonl", prompts, "prompts")  # type: ignore[arg-type]
    settings = {"enable": True, "update": "stored", "min_groups": 32, "warmup_steps": 15} | replay
    config = OmegaConf.create({"trainer": {"default_local_dir": str(folder)}, "replay": settings})
    OmegaConf.save(config, folder / "config.yaml")
    return config


def prompt(index: int, side: str, reward: float) -> dict[str, Any]:
    return {"index": index, "type": side, "mode": "qa", "subject": "Ada", "rewards": [reward, reward]}


def warnings(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(line.startswith("warning: ") for line in captured.err.splitlines())
    return [line.removeprefix("warning: ") for line in captured.err.splitlines()]


@pytest.mark.parametrize(
    ("losses", "warned"),
    [
        ([8.20, 7.69, 8.17], "8.2 in the first quarter of the steps, 8.17 in the last"),
        ([2.0] * 8, "2 in the first quarter of the steps, 2 in the last"),
        ([2.0, 2.0, 1.95, 1.95], "hardly changed"),  # 2.5 % less
        ([2.0, 1.9, 1.8, 1.7], ""),
        ([8.0, 9.0, 5.0, 4.0], ""),
        ([], ""),
    ],
)
def test_the_loss_of_stage_1(
    losses: list[float], warned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = stage1_run(tmp_path, losses or [2.0, 1.0])
    if not losses:
        (tmp_path / "records" / "metrics.jsonl").unlink()  # trainer.logger=[console]
    learning.after_stage1(config)
    found = warnings(capsys)
    assert len(found) == bool(warned)
    assert warned in "".join(found)


RISING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]


def test_a_run_that_learns_is_not_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learning.after_stage2(stage2_run(tmp_path, RISING))
    assert warnings(capsys) == []


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"forget": [0.0] * 3}, "no response to a forget prompt earned any reward in 3 steps"),
        ({"refused": 0.0}, "no response to a forget prompt was a refusal in 8 steps"),
        (
            {"forget": [0.2] * 8},
            "the reward of forget prompts did not rise: 0.20 in the first quarter of the steps, 0.20",
        ),
        ({"no_signal": 1.0}, "in no step did the responses to one prompt earn different rewards"),
        (
            {"updates": 0.0, "size": 7},
            "no replay update happened in 8 steps: the buffer held 7 groups at most, where replay.min_groups "
            "is 32 and replay.warmup_steps 15",
        ),
    ],
)
def test_a_run_that_learns_nothing(
    changes: dict[str, Any], warned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learning.after_stage2(stage2_run(tmp_path, **({"forget": RISING} | changes)))
    (found,) = warnings(capsys)
    assert warned in found


@pytest.mark.parametrize(
    "changes",
    [
        {"forget": [0.9] * 8},  # high from the first step on
        {"forget": [0.2] * 3},  # too short to say that it does not rise
        {"updates": 0.0, "enable": False},
        {"updates": 0.0, "update": "on_policy"},
    ],
)
def test_what_is_no_reason_to_warn(
    changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learning.after_stage2(stage2_run(tmp_path, **({"forget": RISING} | changes)))
    assert warnings(capsys) == []


def test_records_that_cannot_be_read_do_not_fail_a_finished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = stage2_run(tmp_path, RISING)
    (tmp_path / "records" / "metrics.jsonl").write_text("no json\n{}\n")
    learning.after_stage2(config)
    (found,) = warnings(capsys)
    assert found.startswith("what the run has learnt is not known: ")


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
    learning.before_stage2(stage2(f"data.train_files={file}"))  # 42 steps of 2e-6
    assert warnings(capsys) == []
    learning.before_stage2(stage2(f"data.train_files={file}", "actor_rollout_ref.actor.optim.lr=2e-8"))
    (found,) = warnings(capsys)
    assert "42 steps add up to 8.4e-07 (actor_rollout_ref.actor.optim.lr is 2e-08)" in found


@pytest.mark.parametrize("benchmark", ["rwku", "tofu", "muse_books", "tiny"])
def test_the_benchmarks_own_rates_are_enough(
    benchmark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rows_file(tmp_path, 80)  # TOFU's, the fewest
    learning.before_stage1(stage1(f"data.train_files={file}", experiment=benchmark))
    learning.before_stage2(stage2(f"data.train_files={file}", experiment=benchmark))
    assert warnings(capsys) == []


def test_a_cosine_is_half_its_peak_on_average() -> None:
    optim = {"lr": 1.0, "lr_warmup_steps": 4, "lr_warmup_steps_ratio": 0.0, "lr_scheduler_type": "cosine"}
    # 0 + 1/4 + 2/4 + 3/4, then 6 halves
    assert learning.rate_sum(OmegaConf.create(optim), 10) == pytest.approx(1.5 + 3)
    share = optim | {"lr_warmup_steps": -1, "lr_warmup_steps_ratio": 0.4, "lr_scheduler_type": "constant"}
    assert learning.rate_sum(OmegaConf.create(share), 10) == pytest.approx(1.5 + 6)
