"""Rounding to nearest, and folders of rounded weights against an independent rounding of the parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from data_prep.world.model import train_tokenizer
from recipe.rerule.evaluation.attacks.quantise import quantise, round_to_nearest
from recipe.rerule.runs.weights import WeightsError
from tests.made_models import put_model

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def test_round_to_nearest_by_hand() -> None:
    """4 bits: 7 steps on each side. The first group has step 1, the second 0.5 and the third is zeros."""
    weights = torch.tensor([[7.0, 2.4, -2.6, 2.5, 3.5, -3.5, 0.2, 0.3, 0.0, 0.0]])
    expected = [[7.0, 2.0, -3.0, 2.0, 3.5, -3.5, 0.0, 0.5, 0.0, 0.0]]
    assert round_to_nearest(weights, 4, 4).tolist() == expected
    assert round_to_nearest(torch.tensor([4.0, -1.9, 2.1]), 2, 3).tolist() == [4.0, 0.0, 4.0]


def llama(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**(sizes | {"num_attention_heads": 2} | changes)))


def saved(model: Any, folder: Path, more: dict[str, Tensor] | None = None, **settings: Any) -> Path:
    """The folder of a model, with `more` tensors."""
    model.save_pretrained(folder, **settings)
    if more:
        file = folder / "model.safetensors"
        save_file(load_file(file) | more, file, metadata={"format": "pt"})
    return folder


def rounded_by_hand(weight: Tensor, bits: int, group: int) -> Tensor:
    """Group by group with plain loops, in float64."""
    result, levels = weight.double().clone(), 2 ** (bits - 1) - 1
    for row in result:
        for first in range(0, len(row), group):
            part = row[first : first + group]
            step = max(abs(value) for value in part.tolist()) / levels
            part.copy_(torch.tensor([round(value / step) * step for value in part.tolist()]))
    return result.to(weight.dtype)


@pytest.mark.parametrize(
    ("bits", "dtype", "tied"), [(8, "float32", False), (4, "float16", True), (3, "bfloat16", False)]
)
def test_the_folder_loads_as_the_rounded_model(bits: int, dtype: str, tied: bool, tmp_path: Path) -> None:
    model = llama(tie_word_embeddings=tied).to(getattr(torch, dtype))
    source = saved(model, tmp_path / "model", max_shard_size="8KB")
    tokenizer = train_tokenizer(["Who wrote it?"], 300)
    tokenizer.save_pretrained(source)
    done = quantise(source, bits, tmp_path / "out", group_size=16)
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert found.dtype == model.dtype
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.split(".")[-2] in PROJECTIONS:
                # 16 does not divide 24 and 40; 12 and 10 do.
                parameter.copy_(rounded_by_hand(parameter, bits, {24: 12, 40: 10}[parameter.shape[1]]))
    for wanted, parameter in zip(model.parameters(), found.parameters(), strict=True):
        assert torch.equal(parameter, wanted)
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("Who?") == tokenizer("Who?")
    assert len(done["group_sizes"]) == 2 * len(PROJECTIONS)
    assert done["weights"] == 2 * (4 * 24 * 24 + 3 * 24 * 40)
    assert 0.8 * done["weights"] < done["changed"] < done["weights"]


def test_bfloat16_is_a_warning_at_8_bits_and_routers_and_norms_are_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("model.layers.0.mlp.gate.weight", "model.layers.0.q_norm.weight")
    more = {name: torch.randn(4, 24).bfloat16() for name in names}
    source = saved(llama().bfloat16(), tmp_path / "model", more)
    capsys.readouterr()
    assert set(more) <= set(quantise(source, 4, tmp_path / "4")["left_alone"])
    assert capsys.readouterr().err == ""
    quantise(source, 8, tmp_path / "8")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {source} is bfloat16")


def without_layers(folder: Path) -> Path:
    return saved(
        GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=8, n_layer=1, n_head=2, n_positions=16)), folder
    )


def with_fused_experts(folder: Path) -> Path:
    return saved(llama(), folder, {"model.layers.0.mlp.experts.gate_up_proj": torch.randn(2, 24, 40)})


def with_nan(folder: Path) -> Path:
    return saved(llama(), folder, {"model.layers.1.mlp.up_proj.weight": torch.full((40, 24), torch.nan)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (without_layers, "has no linear weights in decoder layers named layers.N"),
        (with_fused_experts, "has model.layers.0.mlp.experts.gate_up_proj of 3 axes"),
        (with_nan, "up_proj.weight"),
        (
            lambda folder: put_model(folder, quantization_config={"quant_method": "gptq"}),
            "holds quantised weights, which cannot be rounded; give full weights",
        ),
        (lambda folder: folder, "."),
    ],
)
def test_models_that_are_refused(make: Any, message: str, tmp_path: Path) -> None:
    source = make(tmp_path / "model")
    with pytest.raises(WeightsError, match=message) as raised:
        quantise(source, 4, tmp_path / "out")
    assert str(source) in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    assert not (tmp_path / "out").exists()
