"""Rounding of written weights: counts by hand, files, configuration."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from recipe.rerule.runs import final_weights
from recipe.rerule.runs.final_weights import Rounding, rounding_of, write_as


def test_counts_by_hand() -> None:
    """bfloat16 has steps of 2^-7 from 1 to 2: half a step back, half a step and a bit on, unchanged."""
    before = torch.tensor([1.0, 1.0, 1.0, 1.0])
    after = torch.tensor([1.0 + 2**-9, 1.0 + 2**-8 + 2**-12, 1.0, 1.0 + 2**-7])
    assert rounding_of(before, after, after.bfloat16()) == Rounding(changed=3, undone=1, compared=4)
    assert rounding_of(before, after, after) == Rounding(changed=3, undone=0, compared=4)


def test_a_float32_start_that_bfloat16_does_not_hold_is_compared_after_rounding() -> None:
    before = torch.tensor([1.0 + 2**-10])
    assert rounding_of(before, before + 2**-12, (before + 2**-12).bfloat16()) == Rounding(1, 1, 1)


def model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    return LlamaForCausalLM(config)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A bfloat16 start model, and a trained one as verl leaves it: float32 shards, config bfloat16."""
    start = model(0).bfloat16()
    start.save_pretrained(tmp_path / "start")
    trained = model(0).bfloat16().float()
    with torch.no_grad():
        for weight in trained.parameters():
            weight.add_(1e-6)
        trained.lm_head.weight.add_(0.5)
    trained.save_pretrained(tmp_path / "trained", max_shard_size="2KB")
    config = tmp_path / "trained" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "bfloat16"}))
    assert len(final_weights.weight_files(tmp_path / "trained")) > 1
    return tmp_path / "start", tmp_path / "trained"


def test_bfloat16_is_the_rounded_model_and_the_share_is_counted(folders: tuple[Path, Path]) -> None:
    start, trained = folders
    exact = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    before = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    found = write_as(trained, "bfloat16", start)
    pairs = list(zip(before.parameters(), exact.parameters(), strict=True))
    changed = sum(int((b != a).sum()) for b, a in pairs)
    undone = sum(int(((b != a) & (a.bfloat16().float() == b)).sum()) for b, a in pairs)
    assert (found.changed, found.undone) == (changed, undone)
    assert found.compared == sum(b.numel() for b, _ in pairs)
    assert undone > 100
    assert changed - undone >= exact.lm_head.weight.numel() // 2
    written = AutoModelForCausalLM.from_pretrained(trained, dtype="auto")
    assert written.dtype == torch.bfloat16
    for rounded, weight in zip(written.parameters(), exact.parameters(), strict=True):
        assert torch.equal(rounded, weight.bfloat16())
    assert not list(trained.glob("*.tmp"))
    index = json.loads((trained / "model.safetensors.index.json").read_text())
    sizes = [t.nbytes for file in final_weights.weight_files(trained) for t in load_file(file).values()]
    assert index["metadata"]["total_size"] == sum(sizes)


def test_float32_changes_no_weight_and_config_json_says_so(folders: tuple[Path, Path]) -> None:
    _, trained = folders
    before = {file.name: load_file(file) for file in final_weights.weight_files(trained)}
    assert write_as(trained, "float32", None) == Rounding()
    assert json.loads((trained / "config.json").read_text())["dtype"] == "float32"
    for file in final_weights.weight_files(trained):
        for name, tensor in load_file(file).items():
            assert torch.equal(tensor, before[file.name][name])
    assert AutoModelForCausalLM.from_pretrained(trained, dtype="auto").dtype == torch.float32


def test_tensors_the_start_model_lacks_count_for_nothing(tmp_path: Path) -> None:
    for name, tensors in (
        ("start", {"a": torch.ones(2)}),
        ("new", {"a": torch.ones(2) * 1.001, "b": torch.ones(3)}),
    ):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text("{}")
    assert write_as(tmp_path / "new", "bfloat16", tmp_path / "start") == Rounding(2, 2, 2)


@pytest.mark.parametrize(
    ("rounding", "sentence"),
    [
        (
            Rounding(compared=9),
            "weights are rounded to bfloat16; none of them differs from the start model's",
        ),
        (
            Rounding(2000, 1500, 4000),
            "rounding to bfloat16 undoes the change of 75.0% of the 2,000 changed weights",
        ),
    ],
)
def test_sentence(rounding: Rounding, sentence: str) -> None:
    assert rounding.sentence() == sentence


def test_float32_writes_no_weight_file_again(folders: tuple[Path, Path]) -> None:
    """They may have 32 GB."""
    _, trained = folders
    files = final_weights.weight_files(trained)
    for file in files:
        os.utime(file, (1, 1))
    final_weights.settle(trained, "float32", "no/model")
    assert [file.stat().st_mtime for file in files] == [1.0] * len(files)
    assert AutoModelForCausalLM.from_pretrained(trained, dtype="auto").dtype == torch.float32


def test_the_share_is_printed(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    start, trained = folders
    final_weights.settle(trained, "bfloat16", str(start))
    started, line = capsys.readouterr().out.splitlines()
    assert started == f"{trained}: rounding the weights to bfloat16 ..."
    assert line.startswith(f"{trained}: rounding to bfloat16 undoes the change of ")


@pytest.mark.parametrize("model", ["org/not-in-the-cache", "../no folder", "{empty}"])
def test_without_the_start_model_the_share_is_not_known(
    model: str, folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start model in another format, or one that only other machines have."""
    (tmp_path / "empty").mkdir()
    final_weights.settle(folders[1], "bfloat16", model.format(empty=tmp_path / "empty"))
    assert "how many changes that undoes is not known" in capsys.readouterr().out
    assert AutoModelForCausalLM.from_pretrained(folders[1], dtype="auto").dtype == torch.bfloat16


def test_a_shard_that_the_cache_lacks_counts_for_nothing(folders: tuple[Path, Path]) -> None:
    start, trained = folders
    model(0).save_pretrained(start, max_shard_size="2KB")
    (start / "model.safetensors").unlink()
    final_weights.weight_files(start)[0].unlink()
    found = write_as(trained, "bfloat16", start)
    assert 0 < found.compared < sum(weight.numel() for weight in model(0).parameters())


def test_a_folder_without_weights_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"dtype": "float16"}')
    final_weights.settle(tmp_path, "bfloat16", "org/name")
    final_weights.settle(tmp_path / "none", "bfloat16", "org/name")
    assert (tmp_path / "config.json").read_text() == '{"dtype": "float16"}'
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_dtype_of_a_models_parts(key: str, tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    parts = {"text_config": {key: "bfloat16", "layers": 2}, "rope_scaling": {"factor": 2}}
    (tmp_path / "config.json").write_text(json.dumps({key: "bfloat16", **parts}))
    write_as(tmp_path, "float32", None)
    assert json.loads((tmp_path / "config.json").read_text()) == {
        key: "float32",
        "text_config": {key: "float32", "layers": 2},
        "rope_scaling": {"factor": 2},
    }
