"""A killed run of the command ends as if it had not been killed; test_golden.py has what it writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from recipe.rerule.runs import checkpoints
from tests.e2e.stack import Command
from tests.unlearning import made

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(900)]

Start = Callable[..., Command]


@pytest.fixture
def start(command: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """start(run folder, *overrides): a run of 6 steps, two in each epoch; beside its model is `other`."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = made.put_near(made.put_model(tmp_path / "model"), tmp_path / "other")
    common = [
        *("-m", "recipe.rerule.unlearn", "experiment=tiny", f"model.path={model}"),
        *made.put_rows(tmp_path / "rows"),
        *("data.train_batch_size=4", "data.micro_batch_size_per_gpu=2"),
        *("optim.lr=1e-3", "trainer.total_epochs=3"),
    ]
    return lambda run, *overrides: command(*common, f"trainer.default_local_dir={run}", *overrides)


@pytest.mark.parametrize(("ranks", "killed_after"), [(1, 3), (2, 2)])
def test_a_killed_run_ends_with_the_parameters_of_one_that_was_not(
    ranks: int, killed_after: int, start: Start, tmp_path: Path
) -> None:
    """After step 2, which ends an epoch, and after step 3, which does not; WHP reads both frozen models."""
    whole, run = tmp_path / "whole", tmp_path / "killed"
    method = ["method=whp", "method.retain=kl", f"reinforced.path={tmp_path}/other", "trainer.save_freq=1"]
    arguments = [*method, f"trainer.n_gpus_per_node={ranks}"]
    start(whole, *arguments).finish()
    killed = start(run, *arguments)
    killed.wait_until(lambda: (checkpoints.newest_complete(run) or 0) >= killed_after)
    killed.end()
    for step in range(killed_after + 1, 7):
        shutil.rmtree(checkpoints.step_folder(run, step), ignore_errors=True)
    assert not (run / "model").exists()
    start(run, *arguments, "trainer.resume_mode=auto").finish()
    expected, found = (load_file(folder / "model" / "model.safetensors") for folder in (whole, run))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
