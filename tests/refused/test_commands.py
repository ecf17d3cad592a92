"""Help, what is left to Hydra, and `check` as a command."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipe.rerule.training import entry
from tests.refused.configurations import build

ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def stage2_composed(*arguments: str) -> DictConfig:
    with initialize_config_module("recipe.rerule.config", version_base=None):
        return compose("rerule_trainer", list(arguments))


def test_an_interpolation_of_what_is_not_there_names_it() -> None:
    config = stage2_composed("data.seed=${data.sead}")
    with pytest.raises(OmegaConfBaseException) as raised:
        OmegaConf.resolve(config)
    line = entry.explain(raised.value, entry.STAGE2)
    assert line == "Interpolation key 'data.sead' not found"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config-name", "rerule_trainer"],
        ["--config-name=nothing"],
        ["experiment=rwku"],
        ["--config-dir", "mine", "--config-name", "rwku"],
    ],
)
def test_other_names_of_configurations_are_left_to_hydra(arguments: list[str]) -> None:
    entry.check_options(arguments, entry.STAGE2)


@pytest.mark.parametrize("module", ["main", "sft", "check"])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_is_ours_and_comes_at_once(module: str, option: str, tmp_path: Path) -> None:
    """Without torch and verl, in less than 3 seconds of a processor."""
    code = (
        f"import sys; sys.argv = [{module!r}, {option!r}]; from recipe.rerule import {module} as it; "
        "(it.command if hasattr(it, 'command') else it.main)(); "
        "assert not {'torch', 'verl', 'pyarrow'} & set(sys.modules)"
    )
    before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before < 3
    assert done.stdout.startswith(f"usage: python -m recipe.rerule.{module} ")
    assert list(tmp_path.iterdir()) == []


def test_cfg_job_still_prints_every_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # which the command sets
    monkeypatch.setattr(sys, "argv", ["sft", "platform=cpu", "optim.lr=0.5", "--cfg", "job"])
    entry.run_task(pytest.fail, entry.STAGE1)
    printed = capsys.readouterr()
    config = OmegaConf.create(printed.out)
    assert (config.optim.lr, config.platform.name) == (0.5, "cpu")
    assert set(config) >= {"model", "data", "engine", "optim", "trainer"}
    assert "checking" not in printed.err


def test_the_check_warns_and_goes_on(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The command itself: what it tells while it imports verl, the warning, the end."""
    folder = build(tmp_path_factory.mktemp("commands"))
    files = [f"model.path={folder}/MODEL", f"data.train_files={folder}/SFT"]
    words = ["stage1", *files, "platform=cpu", "optim.lr=1e-3", "optim.lr_warmup_steps=20"]
    done = subprocess.run(
        [sys.executable, "-m", "recipe.rerule.check", *words],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sizes, memory, end = done.stdout.splitlines()
    assert sizes == "stage 1: 9 steps, batch 8, 24 rows, at most 3 epochs, learning rate 0.001"
    assert memory.startswith("memory: about ")
    assert end == "stage 1: nothing wrong"
    assert done.stderr.startswith("checking settings, model and rows ...\n")
    assert [line for line in done.stderr.splitlines() if line.startswith("warning: ")] == [
        "warning: optim.lr_warmup_steps is 20, but the run has 9 steps: the learning rate never reaches "
        "0.001; lower it, or make the run longer"
    ]
    assert list(tmp_path.iterdir()) == []
