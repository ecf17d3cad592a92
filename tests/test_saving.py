"""What is said of the disk before a run starts, by the checks that both stages and `check` make."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from data_prep.contract import write_rows, write_sft_rows
from recipe.rerule.training import checkpoint_size, settings
from tests.training.test_settings import row, stage1_rows, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and rows of both stages."""
    folder = tmp_path_factory.mktemp("saving")
    write_model(folder / "model")
    write_rows(folder / "train.parquet", [row(index) for index in range(20)])
    write_sft_rows(folder / "sft.parquet", stage1_rows(24))
    return folder


@pytest.fixture(scope="module")
def stages(folder: Path) -> dict[int, DictConfig]:
    """experiment=tiny of both stages: stage 1 with two epochs of 3 steps, stage 2 with 34 steps."""
    run = ["experiment=tiny", f"trainer.default_local_dir={folder}/run"]
    first = [f"model.path={folder}/model", f"data.train_files={folder}/sft.parquet", "trainer.total_epochs=2"]
    second = [f"actor_rollout_ref.model.path={folder}/model"]
    second += [f"data.{name}_files={folder}/train.parquet" for name in ("train", "val")]
    return {
        1: composed("recipe.rerule.config.stage1", "sft_trainer", run + first),
        2: composed("recipe.rerule.config", "rerule_trainer", run + second),
    }


def composed(module: str, name: str, arguments: list[str]) -> DictConfig:
    with initialize_config_module(module, version_base=None):
        return compose(name, arguments)


@pytest.fixture
def checked(
    stages: dict[int, DictConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[list[str], list[str]]]:
    """checked(stage, values, free): lines about the disk, and warnings about it, with so many bytes free."""

    def check(stage: int, values: dict[str, Any], free: int) -> tuple[list[str], list[str]]:
        config = copy.deepcopy(stages[stage])
        for key, value in values.items():
            OmegaConf.update(config, key, value)
        monkeypatch.setattr(checkpoint_size.shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
        (settings.check_stage1 if stage == 1 else settings.check)(config)
        about = [line for line in capsys.readouterr().err.splitlines() if "GB are free" in line]
        warnings = [line for line in about if line.startswith("warning: ")]
        return [line for line in about if line not in warnings], warnings

    return check


ACTOR, BFLOAT16 = "actor_rollout_ref.actor", {"save.weights_dtype": "bfloat16"}
EVERY_10, HOURLY = {"trainer.save_freq": 10}, {"save.minutes": 60}
NEEDS = [
    # Stage, what is added, bytes a parameter, checkpoints at once, bytes a parameter beyond those.
    (2, {}, 16, 1, 0),
    (2, BFLOAT16, 14, 1, 4),
    (2, HOURLY, 16, 2, 0),
    (2, HOURLY | {"trainer.total_training_steps": 1}, 16, 1, 0),
    (2, EVERY_10, 16, 4, 0),
    (2, EVERY_10 | HOURLY, 16, 5, 0),
    (2, EVERY_10 | HOURLY | {"trainer.max_actor_ckpt_to_keep": 1}, 16, 2, 0),
    (2, {f"{ACTOR}.checkpoint.save_contents": ["hf_model"]}, 4, 1, 0),
    (2, {"algorithm.adv_estimator": "gae"}, 28, 1, 0),
    (2, {"actor_rollout_ref.model.lora_rank": 4, "actor_rollout_ref.model.lora.merge": True}, 8, 1, 0),
    (1, {}, 8, 1, 0),
    (1, BFLOAT16, 6, 1, 4),
    (1, {"trainer.save_freq": "after_each_epoch"}, 8, 2, 0),
    (1, {"trainer.save_freq": 1}, 8, 6, 0),
    (1, {"trainer.save_freq": 1, "trainer.max_ckpt_to_keep": 2}, 8, 3, 0),
]


@pytest.mark.parametrize(("stage", "values", "bytes_each", "at_once", "draft"), NEEDS)
def test_what_checkpoints_take_is_said_and_warned_of_where_there_is_less_room(
    stage: int,
    values: dict[str, Any],
    bytes_each: int,
    at_once: int,
    draft: int,
    folder: Path,
    checked: Callable[..., tuple[list[str], list[str]]],
) -> None:
    parameters = checkpoint_size.parameter_count(str(folder / "model"))
    needed = parameters * (bytes_each * at_once + draft)
    (line,), warnings = checked(stage, values, needed)
    assert f"a checkpoint takes about {parameters * bytes_each / 1e9:.3g} GB (" in line
    assert (f"up to {at_once} at once" in line) == (at_once > 1)
    assert warnings == []
    (line,), (warning,) = checked(stage, values, needed - 1)
    assert f"the checkpoints of {folder}/run need up to {needed / 1e9:.3g} GB, and only" in warning


def test_without_checkpoints_nothing_is_said(checked: Callable[..., tuple[list[str], list[str]]]) -> None:
    assert checked(2, {"trainer.save_freq": -1} | HOURLY, 0) == ([], [])


def test_a_model_that_cannot_be_counted_is_no_error(
    monkeypatch: pytest.MonkeyPatch, checked: Callable[..., tuple[list[str], list[str]]]
) -> None:
    def refuse(*arguments: object) -> int:
        raise ValueError("Unrecognized configuration class")

    monkeypatch.setattr(checkpoint_size, "parameter_count", refuse)
    (line,), warnings = checked(2, {}, 5 * 10**9)
    assert line.startswith("the size of a checkpoint is not known; 5 GB are free in ")
    assert warnings == []
