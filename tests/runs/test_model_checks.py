"""What is looked at in a model's folder; the folders that were tried are in tests/refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from recipe.rerule.runs import checkpoints, model_checks
from tests.made_models import CONFIG, put_model, tensors


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


def test_values_of_eight_bits_are_left_alone(tmp_path: Path) -> None:
    folder = put_model(tmp_path / "model")
    scales = {"model.layers.0.q.weight": torch.full((4,), float("nan")).to(torch.float8_e4m3fn)}
    save_file(tensors() | scales, folder / "model.safetensors")
    assert model_checks.problem(folder) is None


def test_several_models_in_one_have_shapes_of_their_own(tmp_path: Path) -> None:
    folder = put_model(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps({"text_config": CONFIG, "vocab_size": 3}))
    assert model_checks.problem(folder) is None


def test_the_vocabulary_is_that_of_the_text_model(tmp_path: Path) -> None:
    assert model_checks.vocabulary_size(str(put_model(tmp_path / "model", vocab_size=77)), False) == 77


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], None),
        (["adapter_config.json", "adapter_model.bin"], None),
        (["adapter_config.json"], "holds no adapter_model.safetensors or adapter_model.bin"),
        (["adapter_model.safetensors"], "holds no adapter_config.json"),
    ],
)
def test_an_adapter_is_a_folder_of_peft(tmp_path: Path, files: list[str], line: str | None) -> None:
    for name in files:
        (tmp_path / name).touch()
    if line is None:
        return model_checks.check_adapter(str(tmp_path), "key")
    with pytest.raises(
        model_checks.ModelError, match=f"key is {tmp_path}, which {line}; give a folder of peft"
    ):
        model_checks.check_adapter(str(tmp_path), "key")


def test_no_adapter_and_a_name_on_the_hub_are_left_to_others() -> None:
    model_checks.check_adapter(None, "key")
    model_checks.check_adapter("owner/adapter", "key")
    model_checks.check("owner/model", "key")


def test_the_model_of_a_run_is_named(tmp_path: Path) -> None:
    inner = put_model(tmp_path / "run" / "global_step_7" / "actor" / "huggingface")
    assert (
        model_checks.problem(tmp_path / "run") == "holds no config.json; give a Hugging Face folder or name"
    )
    checkpoints.finish(tmp_path / "run", 7)
    assert model_checks.problem(tmp_path / "run") == f"is the folder of a run; its model is in {inner}"
    assert model_checks.problem(inner.parents[1]) == f"is the folder of a run; its model is in {inner}"
