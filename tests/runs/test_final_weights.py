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


@pytest.mark.parametrize(
    ("before", "after", "dtype", "counts"),
    [
        # bfloat16 has steps of 2^-7 from 1 to 2: half a step, a bit more, none, a whole one.
        ([1.0] * 4, [1 + 2**-9, 1 + 2**-8 + 2**-12, 1.0, 1 + 2**-7], torch.bfloat16, Rounding(3, 1, 4)),
        ([1.0] * 4, [1 + 2**-9, 1 + 2**-8 + 2**-12, 1.0, 1 + 2**-7], torch.float32, Rounding(3, 0, 4)),
        # A start that bfloat16 does not hold is compared after rounding.
        ([1 + 2**-10], [1 + 2**-10 + 2**-12], torch.bfloat16, Rounding(1, 1, 1)),
    ],
)
def test_counts_by_hand(
    before: list[float], after: list[float], dtype: torch.dtype, counts: Rounding
) -> None:
    trained = torch.tensor(after)
    assert rounding_of(torch.tensor(before), trained, trained.to(dtype)) == counts


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


def test_float32_writes_no_weight_file_again_and_config_json_says_so(folders: tuple[Path, Path]) -> None:
    """They may have 32 GB."""
    _, trained = folders
    files = final_weights.weight_files(trained)
    for file in files:
        os.utime(file, (1, 1))
    final_weights.settle(trained, "float32", "no/model")
    assert [file.stat().st_mtime for file in files] == [1.0] * len(files)
    assert json.loads((trained / "config.json").read_text())["dtype"] == "float32"
    assert AutoModelForCausalLM.from_pretrained(trained, dtype="auto").dtype == torch.float32


def test_tensors_the_start_model_lacks_count_for_nothing(tmp_path: Path) -> None:
    named = {"start": {"a": torch.ones(2)}, "new": {"a": torch.ones(2) * 1.001, "b": torch.ones(3)}}
    for name, tensors in named.items():
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text("{}")
    assert write_as(tmp_path / "new", "bfloat16", tmp_path / "start") == Rounding(2, 2, 2)
    assert "undoes the change of 75.0% of the 2,000 changed weights" in Rounding(2000, 1500, 4000).sentence()
    assert Rounding(compared=9).sentence().endswith("none of them differs from the start model's")


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
