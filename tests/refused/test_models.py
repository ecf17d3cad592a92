"""Each model, run folder and checkpoint of model_cases.py is refused or taken as its case says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from recipe.rerule.evaluation.engine.models import check_models, resolve_models
from recipe.rerule.preflight import checks
from recipe.rerule.runs import checkpoints, run_folder
from tests.made_models import put_model
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level
from tests.refused.cases import Case
from tests.refused.model_cases import (
    FOLDERS,
    MODELS,
    RESUMES,
    TOKENIZERS,
    FolderCase,
    ModelCase,
    ResumeCase,
)
from tests.refused.rows import rl, sft, stored
from tests.refused.test_data import BATCH, composed


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "sft.parquet").write_bytes(stored(sft()))
    (folder / "train.parquet").write_bytes(stored(rl()))
    (folder / "val.parquet").write_bytes(stored(rl("probe", start=50)))
    return folder


@pytest.fixture(scope="module")
def stage1(rows: Path) -> DictConfig:
    return composed("recipe.rerule.config.stage1", "sft_trainer", f"data.train_files={rows}/sft.parquet")


@pytest.fixture(scope="module")
def stage2(rows: Path) -> DictConfig:
    files = f"data.train_files={rows}/train.parquet", f"data.val_files={rows}/val.parquet"
    return composed("recipe.rerule.config", "rerule_trainer", BATCH, *files)


@pytest.fixture(scope="module")
def unlearn(rows: Path) -> DictConfig:
    chosen = "method=rejection_steering", f"data.alternate={rows}/sft.parquet", "data.train_files=null"
    return composed("recipe.rerule.config.unlearn", "unlearn_trainer", *chosen)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = put_model(tmp_path_factory.mktemp("models") / "model")
    byte_level(LLAMA3_TEMPLATE).save_pretrained(folder)
    return folder


@pytest.fixture
def whole(model: Path, tmp_path: Path) -> Path:
    """A whole model's folder, which the test may change."""
    return shutil.copytree(model, tmp_path / "given")


def assert_outcome(case: Case, line: str, call: Callable[[], object]) -> None:
    """The call is refused with one line that holds `line`, or returns."""
    if case.outcome == "valid":
        call()
        return
    with pytest.raises(ValueError) as raised:  # noqa: PT011  (the line itself is what is tested)
        call()
    assert line in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def trained(
    stage1: DictConfig, stage2: DictConfig, model: Path, folder: Path | str, mode: str = "disable"
) -> list[Callable[[], object]]:
    """The checks of both stages with this model and run folder."""
    stage1, stage2 = stage1.copy(), stage2.copy()
    stage1.model.path = stage2.actor_rollout_ref.model.path = str(model)
    for config in (stage1, stage2):
        config.trainer.default_local_dir, config.trainer.resume_mode = str(folder), mode
        config.trainer.resume_from_path = f"{folder}/global_step_3"
    return [
        lambda: checks.require(checks.findings(checks.stage1, stage1)),
        lambda: checks.require(checks.findings(checks.stage2, stage2)),
    ]


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.name)
def test_model(case: ModelCase, whole: Path, tmp_path: Path, stage1: DictConfig, stage2: DictConfig) -> None:
    given = case.make(whole)
    for call in trained(stage1, stage2, given, tmp_path / "run"):
        assert_outcome(case, case.line, call)
    assert_outcome(case, case.line, lambda: check_models(resolve_models([f"name={given}"])))


@pytest.mark.parametrize("case", TOKENIZERS, ids=lambda case: case.name)
def test_tokenizer_and_code(
    case: ModelCase,
    whole: Path,
    tmp_path: Path,
    stage1: DictConfig,
    stage2: DictConfig,
    unlearn: DictConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # nobody is to be asked whether to trust the code
    given, unlearn = case.make(whole), unlearn.copy()
    unlearn.model.path, unlearn.trainer.default_local_dir = str(given), str(tmp_path / "run")
    calls = trained(stage1, stage2, given, tmp_path / "run")
    for call in [*calls, lambda: checks.require(checks.findings(checks.unlearn, unlearn))]:
        assert_outcome(case, case.line, call)
    assert not (tmp_path / "run").exists()
    assert not (whole / "executed").exists()


@pytest.mark.parametrize("case", FOLDERS, ids=lambda case: case.name)
def test_run_folder(
    case: FolderCase, whole: Path, tmp_path: Path, stage1: DictConfig, stage2: DictConfig
) -> None:
    (tmp_path / "here").mkdir()
    folder = case.make(tmp_path / "here")
    before = sorted(tmp_path.rglob("*"))
    for call in trained(stage1, stage2, whole, folder):
        assert_outcome(case, case.line, call)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("case", RESUMES, ids=lambda case: case.name)
def test_checkpoint(
    case: ResumeCase, whole: Path, tmp_path: Path, stage1: DictConfig, stage2: DictConfig
) -> None:
    folder = checkpoints.step_folder(tmp_path / "run", 3)
    for name in ("data.pt", "config.json", "actor/optim_world_size_1_rank_0.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"content")
    checkpoints.finish(tmp_path / "run", 3)
    try:
        case.make(folder)
    except PermissionError:
        pytest.skip("only root can give a file to another user")
    for stage, call in enumerate(trained(stage1, stage2, whole, tmp_path / "run", case.mode), start=1):
        (tmp_path / "run" / run_folder.MARKER).unlink(missing_ok=True)
        run_folder.begin(tmp_path / "run", stage)
        assert_outcome(case, case.line, call)
