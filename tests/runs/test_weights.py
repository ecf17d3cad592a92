from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from recipe.rerule.runs.weights import copy_others, read_weights, write_index
from tests.made_models import VOCABULARY, put_model, tensors


def put_shards(folder: Path) -> Path:
    """The made model with its embeddings in the second of two files."""
    put_model(folder)
    (folder / "model.safetensors").unlink()
    names = {"b.safetensors": ["model.embed_tokens.weight"]}
    names["a.safetensors"] = sorted(tensors().keys() - set(names["b.safetensors"]))
    for file, inside in names.items():
        save_file({name: tensors()[name] for name in inside}, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, inside in names.items() for name in inside}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("put", [put_model, put_shards])
def test_names_and_shapes(put: object, tmp_path: Path) -> None:
    assert callable(put)
    weights = read_weights(put(tmp_path / "model"), "changed")
    assert weights.files.keys() == tensors().keys()
    assert weights.shapes()["model.embed_tokens.weight"] == [VOCABULARY, 8]
    assert weights.without("model.norm.weight").files.keys() == tensors().keys() - {"model.norm.weight"}


def test_tensors_by_file_and_the_index(tmp_path: Path) -> None:
    weights = read_weights(put_shards(tmp_path / "model"), "changed")
    files = {file.name: names for file, names in weights.by_file().items()}
    assert list(files) == ["a.safetensors", "b.safetensors"]
    assert files["b.safetensors"] == ["model.embed_tokens.weight"]
    write_index(weights, tmp_path, {"total_size": 4})
    written = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    read = json.loads((tmp_path / "model/model.safetensors.index.json").read_text())
    assert written == {"metadata": {"total_size": 4}, "weight_map": read["weight_map"]}
    (tmp_path / "other").mkdir()  # one file needs no index
    write_index(read_weights(put_model(tmp_path / "single"), "changed"), tmp_path / "other", {})
    assert not list((tmp_path / "other").iterdir())


def test_what_is_copied(tmp_path: Path) -> None:
    source, target = put_shards(tmp_path / "model"), tmp_path / "target"
    target.mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "marker.json", "notes.md"):
        (source / name).write_text("{}")
    copy_others(source, target, "marker.json")
    found = {path.name for path in target.iterdir()}
    assert found == {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"}
