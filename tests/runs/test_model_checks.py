"""What is looked at in a model's folder; the folders that were tried are in tests/refused."""

from pathlib import Path

import pytest
from safetensors.torch import save_file

from recipe.rerule.runs import checkpoints, model_checks
from tests.made_models import put_model, tensors


def with_nan(folder: Path, name: str) -> Path:
    content = tensors()
    content[name].view(-1)[-1] = float("nan")
    save_file(content, put_model(folder) / "model.safetensors")
    return folder


def test_values_are_looked_at_from_the_smallest_tensor_on_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm, embeddings = "model.norm.weight", "model.embed_tokens.weight"
    folders = {name: with_nan(tmp_path / name, name) for name in (norm, embeddings)}
    monkeypatch.setattr(model_checks, "SCANNED", 3 * 8 * 4)  # the three norms of 8 float32
    assert "NaN" in str(model_checks.problem(folders[norm]))
    assert model_checks.problem(folders[embeddings]) is None
    monkeypatch.setattr(model_checks, "SCANNED", 3 * 8 * 4 + 400 * 8 * 4)
    assert "NaN" in str(model_checks.problem(folders[embeddings]))


def test_the_model_of_a_run_is_named(tmp_path: Path) -> None:
    inner = put_model(tmp_path / "run" / "global_step_7" / "actor" / "huggingface")
    assert str(model_checks.problem(tmp_path / "run")).startswith("holds no config.json")
    checkpoints.finish(tmp_path / "run", 7)
    assert model_checks.problem(tmp_path / "run") == f"is the folder of a run; its model is in {inner}"
    assert model_checks.problem(inner.parents[1]) == f"is the folder of a run; its model is in {inner}"
