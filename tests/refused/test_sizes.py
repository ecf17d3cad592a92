"""Every case of `sizes_cases`: what verl would refuse in the middle of a run is refused before the start."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from data_prep.contract import sft_row, write_rows, write_sft_rows
from recipe.rerule.training import settings
from tests.refused.settings_cases import SettingsCase
from tests.refused.sizes_cases import CASES, ENOUGH, FEW, STAGE1, STAGE2
from tests.refused.test_settings import composed
from tests.training.test_settings import row, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, 64 prompts of stage 2, 24 rows of stage 1, and others for validation."""
    folder = tmp_path_factory.mktemp("sizes")
    write_model(folder / "model")
    write_rows(folder / "train.parquet", _rows(64, "Where"))
    write_rows(folder / "val.parquet", _rows(8, "When"))
    for name, count, word in (("sft", 24, "Where"), (FEW, 7, "When"), (ENOUGH, 8, "When")):
        write_sft_rows(folder / f"{name}.parquet", _sft_rows(count, word))
    return folder


def _rows(count: int, word: str) -> list[dict[str, Any]]:
    """Sides in turn."""
    made = []
    for index in range(count):
        side, keyword = ("forget", "Ada Quill") if index % 2 else ("retain", "")
        made.append(row(index, prompt=f"{word} {index}?", side=side, keyword=keyword))
        made[-1]["extra_info"]["section"] = side
    return made


def _sft_rows(count: int, word: str) -> list[dict[str, Any]]:
    info = {"mode": "qa", "subject": "Ada"}
    return [
        sft_row(prompt=f"{word} {index}?", answer="No idea.", extra_info={"index": index, **info})
        for index in range(count)
    ]


@pytest.fixture(scope="module")
def configs(folder: Path) -> dict[str, DictConfig]:
    """experiment=rwku of both stages, without warnings."""
    run = ["experiment=rwku", f"trainer.default_local_dir={folder}/run"]
    stage1 = [
        f"model.path={folder}/model",
        f"data.train_files={folder}/sft.parquet",
        "optim.lr=1e-5",
        "optim.lr_warmup_steps=1",
    ]
    stage2 = [
        f"actor_rollout_ref.model.path={folder}/model",
        f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/val.parquet",
        "replay.warmup_steps=1",
    ]
    return {
        STAGE1: composed("recipe.rerule.config.stage1", "sft_trainer", run + stage1),
        STAGE2: composed("recipe.rerule.config", "rerule_trainer", run + stage2),
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.group[-1]}:{case.name}")
def test_sizes(
    case: SettingsCase, configs: dict[str, DictConfig], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = copy.deepcopy(configs[case.group])
    for key, value in case.values.items():
        file = f"{folder}/{value}.parquet" if value in (FEW, ENOUGH) else value
        OmegaConf.update(config, key, file, merge=False)
    check = settings.check_stage1 if case.group == STAGE1 else settings.check
    if case.outcome == "refused":
        with pytest.raises(ValueError) as raised:  # noqa: PT011  (the line itself is what is tested)
            check(config)
        assert "\n" not in str(raised.value)
        assert case.named in str(raised.value)
        return
    check(config)
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == (case.outcome == "warned")
    assert all(case.named in line for line in warnings)
