"""Every case of `settings_cases` on the configuration that Hydra composes, by the checks of the commands."""

from __future__ import annotations

import copy
import math
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from data_prep.contract import write_rows, write_sft_rows
from recipe.rerule.training import entry, settings
from tests.refused.settings_cases import CASES, CONFIG_NAMES, OPTIONS, STAGE1, STAGE2, UNKNOWN, SettingsCase
from tests.training.test_settings import environment, row, stage1_rows, write_model

OF_VALUES = [case for case in CASES if isinstance(case, SettingsCase)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and rows: 20 prompts of both sides and 20 others for validation, and 24 rows of stage 1."""
    folder = tmp_path_factory.mktemp("settings")
    write_model(folder / "model")
    write_rows(folder / "train.parquet", [_row(index, "Where") for index in range(20)])
    write_rows(folder / "val.parquet", [_row(index, "When") for index in range(20, 40)])
    write_sft_rows(folder / "sft.parquet", stage1_rows(24))
    return folder


@pytest.fixture(scope="module")
def configs(folder: Path) -> dict[str, DictConfig]:
    """experiment=tiny of both stages, in which nothing is wrong: stage 1 with 3 steps, stage 2 with 34."""
    stage1 = [
        f"model.path={folder}/model",
        f"data.train_files={folder}/sft.parquet",
        "optim.lr_warmup_steps=1",
    ]
    stage2 = [
        f"actor_rollout_ref.model.path={folder}/model",
        f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/val.parquet",
    ]
    run = ["experiment=tiny", f"trainer.default_local_dir={folder}/run"]
    return {
        STAGE1: composed("recipe.rerule.config.stage1", "sft_trainer", run + stage1),
        STAGE2: composed("recipe.rerule.config", "rerule_trainer", run + stage2),
    }


def _row(index: int, word: str) -> dict[str, Any]:
    """Sides in turn."""
    side, keyword = ("forget", "Ada Quill") if index % 2 else ("retain", "")
    made = row(index, prompt=f"{word} {index}?", side=side, keyword=keyword)
    made["extra_info"]["section"] = side
    return made


def composed(module: str, name: str, arguments: list[str]) -> DictConfig:
    with initialize_config_module(module, version_base=None):
        return compose(name, arguments)


def check(group: str, config: DictConfig) -> None:
    if group == STAGE1:
        settings.check_stage1(config)
    else:
        settings.check(config)


@pytest.fixture
def changed(configs: dict[str, DictConfig], case: SettingsCase) -> Iterator[DictConfig]:
    """The case's configuration. Interpolations are resolved when read, so that this equals composing it."""
    config = configs[case.group]
    written = {} if case.added else {key: _written(config, key) for key in case.values}
    for key, value in case.values.items():
        OmegaConf.update(config, key, value, merge=False, force_add=case.added)
    yield config
    for key in case.values:
        if case.added:
            _remove(config, key)
        else:
            OmegaConf.update(config, key, written[key], merge=False)


def _written(config: DictConfig, key: str) -> Any:
    """The value, or the interpolation as it is written."""
    section, _, name = key.rpartition(".")
    group = OmegaConf.select(config, section) if section else config
    node = group._get_node(name)
    if OmegaConf.is_config(node) and not node._is_interpolation():
        return OmegaConf.to_container(node, resolve=False)
    return node._value() if node is not None else None


def _remove(config: DictConfig, key: str) -> None:
    section, _, name = key.rpartition(".")
    group = OmegaConf.select(config, section)
    with open_dict(group):
        del group[name]


def of(outcome: str) -> list[Any]:
    cases = [case for case in OF_VALUES if case.outcome == outcome]
    return [pytest.param(case, id=f"{case.group[-1]}:{case.name}") for case in cases]


@pytest.mark.parametrize("case", of("refused"))
def test_a_wrong_value_is_one_line_that_names_it(case: SettingsCase, changed: DictConfig) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011  (the line itself is what is tested)
        check(case.group, changed)
    line = str(raised.value)
    assert "\n" not in line
    assert case.named in line


@pytest.mark.parametrize("case", of("warned"))
def test_what_is_hardly_meant_is_a_warning(
    case: SettingsCase, changed: DictConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    check(case.group, changed)
    lines = warnings_of(capsys)
    assert len(lines) == 1
    assert case.named in lines[0]


@pytest.mark.parametrize("case", of("valid"))
def test_what_is_documented_is_accepted(
    case: SettingsCase, changed: DictConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    check(case.group, changed)
    assert warnings_of(capsys) == []


def test_the_unchanged_settings_are_accepted_and_no_check_writes_anything(
    configs: dict[str, DictConfig], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    for group, config in configs.items():
        check(group, config)
    assert warnings_of(capsys) == []
    assert sorted(folder.rglob("*")) == before


def warnings_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]


@pytest.mark.parametrize(("argument", "named"), UNKNOWN, ids=[argument for argument, _ in UNKNOWN])
def test_an_override_that_hydra_does_not_compose_is_explained(argument: str, named: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011  (Hydra's are of many kinds)
        composed("recipe.rerule.config", "rerule_trainer", [argument])
    line = entry.explain(raised.value, entry.STAGE2)
    assert "\n" not in line
    assert named in line


def test_an_interpolation_of_what_is_not_there_names_it() -> None:
    config = composed("recipe.rerule.config", "rerule_trainer", ["data.seed=${data.sead}"])
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
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True
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


def test_the_check_warns_and_goes_on(folder: Path, tmp_path: Path) -> None:
    """The command itself: what it tells while it imports verl, the warning, the end."""
    files = [f"model.path={folder}/model", f"data.train_files={folder}/sft.parquet"]
    changes = ["platform=cpu", "optim.lr=1e-3", "optim.lr_warmup_steps=20"]
    done = subprocess.run(
        [sys.executable, "-m", "recipe.rerule.check", "stage1", *files, *changes],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
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


def test_the_line_in_the_documentation_is_what_is_printed(configs: dict[str, DictConfig]) -> None:
    config = copy.deepcopy(configs[STAGE2])
    config.actor_rollout_ref.actor.optim.lr = math.nan
    with pytest.raises(settings.SettingsError) as raised:
        settings.check(config)
    page = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
    assert f"\n    error: {raised.value}\n" in page.read_text("utf-8")
