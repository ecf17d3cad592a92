"""What is said of the disk before a run starts."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from omegaconf import OmegaConf

from recipe.rerule.preflight import disk
from recipe.rerule.training import lora
from tests.refused.configurations import STAGE1, STAGE2, UNLEARN, build, composed, findings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("disk"))


Checked = Callable[..., tuple[list[str], list[str]]]


@pytest.fixture
def checked(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Checked:
    """checked(stage, values, free): lines about the disk, and warnings about it, with so many bytes free."""

    def check(stage: int, values: dict[str, Any], free: int) -> tuple[list[str], list[str]]:
        config = composed(STAGE1 if stage == 1 else STAGE2, folder)
        for key, value in values.items():
            OmegaConf.update(config, key, value)
        monkeypatch.setattr(disk.shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
        steps = config.trainer.total_training_steps or 6
        found = list(disk.warnings(config, steps))
        return capsys.readouterr().err.splitlines(), found

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
    (1, {"engine.model_dtype": "bf16"}, 6, 1, 0),
    (2, {f"{ACTOR}.fsdp_config.model_dtype": "bf16"}, 14, 1, 0),
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
    checked: Checked,
) -> None:
    parameters = sum(weight.numel() for weight in lora.empty(composed(STAGE1, folder).model).parameters())
    needed = parameters * (bytes_each * at_once + draft)
    (line,), warnings = checked(stage, values, needed)
    assert f"a checkpoint takes about {parameters * bytes_each / 1e9:.3g} GB (" in line
    assert (f"up to {at_once} at once" in line) == (at_once > 1)
    assert warnings == []
    (line,), (warning,) = checked(stage, values, needed - 1)
    assert f"the checkpoints of {folder}/run need up to {needed / 1e9:.3g} GB, and only" in warning


def test_unlearn_says_it_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of its own rows, which data.train_files does not name: 24, in batches of 4."""
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda place: SimpleNamespace(free=5))
    values = {"method": "rejection_steering", "data.alternate": "SFT", "trainer.total_epochs": 3}
    errors, warnings = findings(UNLEARN, folder, values | {"trainer.save_freq": "after_each_epoch"})
    assert errors == []
    assert f"the checkpoints of {folder}/run need up to " in warnings[-1]
    assert ", up to 3 at once " in capsys.readouterr().err


def test_without_checkpoints_nothing_is_said(checked: Checked) -> None:
    assert checked(2, {"trainer.save_freq": -1} | HOURLY, 0) == ([], [])


def test_a_model_that_cannot_be_counted_is_no_error(monkeypatch: Any, checked: Checked) -> None:
    monkeypatch.setattr(lora, "empty", Mock(side_effect=ValueError("Unrecognized configuration class")))
    (line,), warnings = checked(2, {}, 5 * 10**9)
    assert line.startswith("the size of a checkpoint is not known; 5 GB are free in ")
    assert warnings == []
