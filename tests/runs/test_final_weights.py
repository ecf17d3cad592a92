"""Rounding of written weights: counts by hand, files, configuration."""

from __future__ import annotations

import json
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
    assert rounding_of(before, after, after.bfloat16()) == Rounding(changed=3, undone=1)
    assert rounding_of(before, after, after) == Rounding(changed=3, undone=0)


def test_a_float32_start_that_bfloat16_does_not_hold_is_compared_after_rounding() -> None:
    before = torch.tensor([1.0 + 2**-10])
    assert rounding_of(before, before + 2**-12, (before + 2**-12).bfloat16()) == Rounding(1, 1)


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
    assert write_as(tmp_path / "new", "bfloat16", tmp_path / "start") == Rounding(2, 2)


@pytest.mark.parametrize(
    ("rounding", "sentence"),
    [
        (Rounding(), "no weight differs from the start model's"),
        (
            Rounding(2000, 1500),
            "rounding to bfloat16 undoes the change of 75.0% of the 2,000 changed weights",
        ),
    ],
)
def test_sentence(rounding: Rounding, sentence: str) -> None:
    assert rounding.sentence() == sentence
