"""What long runs need, on the real stack: checkpoints by time, and weights written in bfloat16."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from recipe.rerule.runs import checkpoints, written_model
from recipe.rerule.runs.history import read_metrics
from tests.e2e.stack import Command, stage2_arguments

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(1800)]

STEPS = 6
BFLOAT16 = "save.weights_dtype=bfloat16"


def test_a_run_without_save_freq_goes_on_from_a_checkpoint_by_time(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    """Stage 1 and 2 with bfloat16 weights; stage 2 is killed and goes on, and its model is evaluated."""
    start, output = train_stage1(command, micro_world, micro_world / "model", tmp_path / "stage1", BFLOAT16)
    assert re.search(r"rounding to bfloat16 undoes the change of [\d.]+% of the", output)
    assert dtypes(start) == ("bfloat16", torch.bfloat16)
    run_folder = tmp_path / "run"
    arguments = [
        "-m",
        "recipe.rerule.main",
        *stage2_arguments(micro_world, run_folder, f"trainer.total_training_steps={STEPS}"),
        f"actor_rollout_ref.model.path={start}",
        "save.minutes=0.001",
        BFLOAT16,
    ]
    first = command(*arguments)
    first.wait_until(lambda: (checkpoints.newest_complete(run_folder) or 0) >= 2)
    assert "up to 2 at once" in first.output
    first.process.send_signal(signal.SIGTERM)
    assert first.wait(60) == 143
    step = checkpoints.newest_complete(run_folder)
    assert step is not None
    assert 2 <= step < STEPS
    assert json.loads((run_folder / f"global_step_{step}" / "complete.json").read_text())["interim"] is True

    second = command(*arguments, "trainer.resume_mode=auto")
    assert second.wait() == 0, second.output[-3000:]
    assert f"global_step_{step}" in second.output
    assert sorted(read_metrics(run_folder)) == list(range(1, STEPS + 1))
    # What is left is what a run without save.minutes leaves: the last step, complete.
    assert [path.name for path in run_folder.glob("global_step_*")] == [f"global_step_{STEPS}"]
    last = run_folder / f"global_step_{STEPS}"
    assert checkpoints.problem(last) is None
    assert "interim" not in json.loads((last / "complete.json").read_text())
    assert_rounded(last / "actor" / "huggingface", trained_weights(last), start, second.output)
    evaluate(command, micro_world, run_folder, tmp_path / "evaluation")


def test_float32_weights_of_a_bfloat16_start_model_are_called_float32(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    """verl writes float32 and leaves the start model's dtype in config.json."""
    start = tmp_path / "start"
    shutil.copytree(micro_world / "model", start)
    written_model.set_dtype(start, "bfloat16", str(start))
    assert dtypes(start) == ("bfloat16", torch.bfloat16)
    model, output = train_stage1(command, micro_world, start, tmp_path / "stage1")
    assert dtypes(model) == ("float32", torch.float32)
    assert "rounding" not in output


def train_stage1(
    command: Callable[..., Command], world: Path, start: Path, run_folder: Path, *more: str
) -> tuple[Path, str]:
    """A stage 1 from the model `start`; returns the folder of its model, and its output."""
    run = command(
        "-m",
        "recipe.rerule.sft",
        "experiment=tiny",
        f"model.path={start}",
        f"data.train_files={world / 'sft.parquet'}",
        f"trainer.default_local_dir={run_folder}",
        "trainer.logger=[file]",
        *more,
    )
    assert run.wait() == 0, run.output[-3000:]
    return run_folder / "model", run.output


def dtypes(folder: Path) -> tuple[str, torch.dtype]:
    """What config.json says, and what transformers makes of it."""
    said = json.loads((folder / "config.json").read_text())["dtype"]
    return said, AutoModelForCausalLM.from_pretrained(folder, dtype="auto").dtype


def trained_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The float32 weights of the only rank's own file."""
    (file,) = (checkpoint / "actor").glob("model_world_size_1_rank_0.pt")
    loaded: dict[str, Any] = torch.load(file, weights_only=False)  # written by this test's run
    tensors = {name: getattr(value, "_local_tensor", value) for name, value in loaded.items()}
    assert {value.dtype for value in tensors.values()} == {torch.float32}
    return tensors


def assert_rounded(written: Path, trained: dict[str, torch.Tensor], start: Path, output: str) -> None:
    """The folder holds the trained weights rounded, says so, and the share that was printed is right."""
    assert dtypes(written) == ("bfloat16", torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(written, dtype="auto")
    before = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32).state_dict()
    changed = undone = 0
    for name, value in model.named_parameters():
        assert value.dtype == torch.bfloat16
        assert torch.equal(value, trained[name].bfloat16())
        moved = trained[name] != before[name]
        changed += int(moved.sum())
        undone += int((moved & (value.float() == before[name])).sum())
    assert changed > 1000
    line = f"{undone / changed:.1%} of the {changed:,} changed weights"
    assert f"{written}: rounding to bfloat16 undoes the change of {line}" in output


def evaluate(command: Callable[..., Command], world: Path, run_folder: Path, out: Path) -> None:
    arguments = ["--platform", "cpu", "--probes", world / "probes.parquet", "--out", out]
    run = command("-m", "recipe.rerule.evaluate", "model", *arguments, "--model", f"run={run_folder}")
    assert run.wait() == 0, run.output[-3000:]
    assert "forget/recall" in json.loads((out / "results.json").read_text())["run"]
