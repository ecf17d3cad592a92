"""Overrides and options that Hydra or the commands refuse, help, and the commands' exit codes."""

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
from tests.refused.configurations import (
    RUNS,
    STAGE1,
    STAGE2,
    UNLEARN,
    build,
    placed,
)
from tests.refused.settings_cases import CONFIG_NAMES, OPTIONS, UNKNOWN

ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("commands"))


def stage2_composed(*arguments: str) -> DictConfig:
    with initialize_config_module("recipe.rerule.config", version_base=None):
        return compose("rerule_trainer", list(arguments))


@pytest.mark.parametrize(("argument", "named"), UNKNOWN, ids=[argument for argument, _ in UNKNOWN])
def test_an_override_that_hydra_does_not_compose_is_explained(argument: str, named: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011  (Hydra's are of many kinds)
        stage2_composed(argument)
    line = entry.explain(raised.value, entry.STAGE2)
    assert "\n" not in line
    assert named in line


def test_an_interpolation_of_what_is_not_there_names_it() -> None:
    config = stage2_composed("data.seed=${data.sead}")
    with pytest.raises(OmegaConfBaseException) as raised:
        OmegaConf.resolve(config)
    line = entry.explain(raised.value, entry.STAGE2)
    assert line == "Interpolation key 'data.sead' not found"


@pytest.mark.parametrize(("argument", "named"), OPTIONS)
def test_an_option_that_there_is_not_is_refused(
    argument: str, named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["main", argument, "platform=cpu"])
    with pytest.raises(SystemExit) as exit_:
        entry.run_task(pytest.fail, entry.STAGE2)
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {named}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(("arguments", "named", "advice"), CONFIG_NAMES)
def test_a_part_given_as_the_whole_configuration_is_refused(
    arguments: str,
    named: str,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["main", *arguments.split(), "platform=cpu"])
    with pytest.raises(SystemExit) as exit_:
        entry.run_task(pytest.fail, entry.STAGE2)
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {named}")
    assert error.endswith(f"{advice}\n")
    assert error.count("\n") == 1


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


def ran(module: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"recipe.rerule.{module}", *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )


def unchanged(group: str, folder: Path, *more: str) -> list[str]:
    run = [*RUNS[group][3], f"trainer.default_local_dir={folder}/run", *more]
    return [placed(folder, override) for override in run]


@pytest.mark.parametrize(
    ("module", "group", "more", "line"),
    [
        ("main", STAGE2, ["replay.tresh=1"], "replay.tresh is no setting; did you mean replay.threshold?"),
        ("main", STAGE2, ["replay.threshold=1.5"], "replay.threshold is 1.5"),
        ("main", STAGE2, ["platform=gpu"], "platform=gpu, but torch sees no accelerator"),
        (
            "main",
            STAGE2,
            ["actor_rollout_ref.model.path=null"],
            "actor_rollout_ref.model.path is not set; pass",
        ),
        ("sft", STAGE1, ["data.train_files=null"], "data.train_files is not set"),
        ("unlearn", UNLEARN, ["method=npo2"], "method is 'npo2'; set it to one of"),
        ("unlearn", UNLEARN, ["method=npo_gdr", "data.forget=FORGET"], "data.retain is not set"),
        ("unlearn", UNLEARN, ["--list", "method=ga"], "method=ga is not for --list" ),
        ("unlearn", UNLEARN, ["--lst"], "--lst is no option; write settings as KEY=VALUE"),
    ],
)  # fmt: skip
def test_a_command_ends_with_one_line_and_code_2_and_writes_nothing(
    module: str, group: str, more: list[str], line: str, folder: Path
) -> None:
    before = sorted(folder.rglob("*"))
    done = ran(
        module,
        folder,
        *([] if "--list" in more else unchanged(group, folder)),
        *unchanged_words(folder, more),
    )
    errors = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
    assert (done.returncode, len(errors), done.stdout) == (2, 1, ""), done.stderr
    assert line in errors[0]
    assert sorted(folder.rglob("*")) == before


def unchanged_words(folder: Path, words: list[str]) -> list[str]:
    return [placed(folder, word) for word in words]


def test_the_check_warns_and_goes_on(folder: Path, tmp_path: Path) -> None:
    """The command itself: what it tells while it imports verl, the warning, the end."""
    files = [f"model.path={folder}/MODEL", f"data.train_files={folder}/SFT"]
    done = ran(
        "check", tmp_path, "stage1", *files, "platform=cpu", "optim.lr=1e-3", "optim.lr_warmup_steps=20"
    )
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
