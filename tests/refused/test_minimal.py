"""Each command line of minimal_cases.py ends as its case says, in one line and with nothing written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from data_prep.world import stage1
from data_prep.world.model import one_thread
from data_prep.world.stage1 import Steering
from recipe.rerule import minimal
from tests.made_models import put_model
from tests.made_worlds import SMALL
from tests.refused.minimal_cases import CASES, MinimalCase
from tests.refused.playground import everything


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small world and its model, and files that are wrong."""
    root = tmp_path_factory.mktemp("minimal")
    with one_thread():
        world, model = stage1.prepare(root / "made", SMALL, Steering())
    for name in ("train", "probes", "sft"):
        shutil.copy(world / f"{name}.parquet", root / f"{name}.parquet")
    rows = pq.read_table(root / "train.parquet")
    forget = [row["reward_model"]["ground_truth"]["type"] == "forget" for row in rows.to_pylist()]
    pq.write_table(rows.filter(forget), root / "forget.parquet")
    (root / "text.parquet").write_text("no parquet")
    (root / "empty").mkdir()
    (root / "own" / "world").mkdir(parents=True)
    (root / "own" / "world" / "mine.txt").write_text("mine")
    for name in ("model", "nan", "base"):
        shutil.copytree(model, root / name)
    (root / "base" / "chat_template.jinja").unlink()
    _spoil(root / "nan" / "model.safetensors")
    put_model(root / "bare")
    return root


def _spoil(file: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    tensors["model.norm.weight"][0] = torch.nan
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_command_line(case: MinimalCase, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = everything(root)
    words = [word.format(root=root) for word in case.options.split()]
    if case.outcome == "refused":
        with pytest.raises(SystemExit) as ended:
            minimal.main(words)
        assert ended.value.code == 2
    else:
        with one_thread():
            minimal.main([*words, "--steps", "1", "--prompts", "2", "--rollouts", "2"])
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith(("error", "warning"))]
    kind = {"refused": ["error"], "warned": ["warning"], "valid": []}[case.outcome]
    assert [line.split(":")[0] for line in lines] == kind
    assert all(case.says.format(root=root) in line for line in lines)
    assert everything(root) == before
