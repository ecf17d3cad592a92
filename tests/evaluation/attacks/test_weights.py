"""Attacks that rewrite weights: rounding against plain loops, directions against a model's own states."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from recipe.rerule.evaluation.attacks.forward import Piece, states
from recipe.rerule.evaluation.attacks.quantise import quantise, round_to_nearest
from recipe.rerule.evaluation.attacks.refusal_direction import (
    ATTACKS,
    orthogonalise,
    prompt_states,
    random_direction,
    refusal_direction,
)
from recipe.rerule.evaluation.attacks.weights import EMBEDDING
from tests.evaluation.attacks.made import SIZES, gemma2, gpt2, llama, material, probe
from tests.made_models import drawn
from tests.unlearning.made import plain_model

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PIECE = Piece([3, 1, 4, 1, 5, 9, 2, 6], 1, "text")


def saved(model: Any, folder: Path, more: dict[str, Tensor] | None = None, **settings: Any) -> Path:
    """The folder of a model, with `more` tensors."""
    model.save_pretrained(folder, **settings)
    if more:
        file = folder / "model.safetensors"
        save_file(load_file(file) | more, file, metadata={"format": "pt"})
    return folder


# Rounding.


def test_round_to_nearest_by_hand():
    """4 bits: 7 steps on each side. The first group has step 1, the second 0.5 and the third is zeros."""
    weights = torch.tensor([[7.0, 2.4, -2.6, 2.5, 3.5, -3.5, 0.2, 0.3, 0.0, 0.0, 0.0, 0.0]])
    expected = [[7.0, 2.0, -3.0, 2.0, 3.5, -3.5, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0]]
    assert round_to_nearest(weights, 4, 4).tolist() == expected
    assert round_to_nearest(torch.tensor([4.0, -1.9, 2.1]), 2, 3).tolist() == [4.0, 0.0, 4.0]


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
def test_the_folder_loads_as_the_rounded_model(bits, dtype, tied, tmp_path, monkeypatch):
    monkeypatch.setattr("recipe.rerule.evaluation.attacks.quantise.GROUP_SIZE", 16)
    model = llama(tie_word_embeddings=tied).to(getattr(torch, dtype))
    source = saved(model, tmp_path / "model", max_shard_size="8KB")
    quantise(source, bits, tmp_path / "out")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert found.dtype == model.dtype
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.split(".")[-2] in PROJECTIONS:
                # 16 does not divide 24 and 40; 12 and 10 do.
                parameter.copy_(rounded_by_hand(parameter, bits, {24: 12, 40: 10}[parameter.shape[1]]))
    for wanted, parameter in zip(model.parameters(), found.parameters(), strict=True):
        assert torch.equal(parameter, wanted)


def test_bfloat16_is_a_warning_at_8_bits_and_routers_and_norms_are_left_alone(tmp_path, capsys):
    names = ("model.layers.0.mlp.gate.weight", "model.layers.0.q_norm.weight")
    more = {name: torch.randn(4, 24).bfloat16() for name in names}
    source = saved(llama().bfloat16(), tmp_path / "model", more)
    capsys.readouterr()
    quantise(source, 4, tmp_path / "4")
    written = load_file(tmp_path / "4" / "model.safetensors")
    assert all(torch.equal(written[name], tensor) for name, tensor in more.items())
    assert capsys.readouterr().err == ""
    quantise(source, 8, tmp_path / "8")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {source} is bfloat16")


# The refusal direction.


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_no_state_of_the_written_model_has_a_part_along_the_direction(kind, tmp_path):
    """Biases are not zeros, which would hide that one of them is left out; Qwen's output layer is tied."""
    settings: dict[str, Any] = {"initializer_range": 0.3, "tie_word_embeddings": kind == "qwen2"}
    model = llama(**settings, attention_bias=True, mlp_bias=True)
    if kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**(SIZES | settings)))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_()
    source = saved(model, tmp_path / "model", max_shard_size="8KB")
    direction = random_direction(24, seed=1)
    orthogonalise(source, direction, tmp_path / "out")
    before, after = (AutoModelForCausalLM.from_pretrained(path) for path in (source, tmp_path / "out"))
    assert float((states(before, [PIECE])[0].double() @ direction).abs().min()) > 1e-4
    assert float((states(after, [PIECE])[0].double() @ direction).abs().max()) < 1e-5
    # The embedding; of each layer two projections, of Llama with their biases.
    kept = dict(before.named_parameters())
    there = {name: one for name, one in after.named_parameters() if name in kept}
    changed = [name for name, one in there.items() if not torch.equal(one, kept[name])]
    assert len(changed) == 1 + 2 * (4 if kind == "llama" else 2)
    assert all(re.search(r"embed_tokens|o_proj|down_proj", name) for name in changed)
    # The output layer reads as before, though it was one tensor with the embedding.
    assert torch.equal(after.lm_head.weight, before.lm_head.weight)
    assert not torch.equal(after.model.embed_tokens.weight, before.model.embed_tokens.weight)


def test_a_planted_direction_is_found_at_its_layer():
    """The sides differ behind layer 2 of 5; the last layer, where they differ more, is left out."""
    forget, retain = drawn(40, 5, 8), drawn(30, 5, 8, seed=1)
    planted = drawn(8, seed=2)
    forget[:, 2] += 3 * planted / planted.norm()
    forget[:, 4] += 30.0
    found = refusal_direction(forget, retain)
    wanted = forget[:, 2].mean(0) - retain[:, 2].mean(0)
    torch.testing.assert_close(found, wanted / wanted.norm())
    assert float(found @ (planted / planted.norm())) > 0.9
    same = torch.ones(4, 2, 8)
    with pytest.raises(ValueError, match="the same mean state"):
        refusal_direction(same, same)


def test_the_direction_is_that_of_the_last_tokens_of_training_prompts(folder, tmp_path):
    """One folder is without it, and one without a random direction; prompts that are probes are left out."""
    train = [probe(n, "fb", "forget" if n < 8 else "retain") for n in range(16)]
    given = material([probe(0)], [probe(1, section="retain")], train)
    (attack,) = ATTACKS
    (change,) = attack.changes(given, attack.options("quick"))
    change.write(folder, {"": tmp_path / "model", "random": tmp_path / "random"})
    random = random_direction(32, 0)
    along = {
        name: float(
            (load_file(tmp_path / name / "model.safetensors")[EMBEDDING].double() @ random).abs().max()
        )
        for name in ("model", "random")
    }
    assert along["random"] < 1e-5 < along["model"]
    few = material([probe(0, "fb")], [], [*train[:4], *train[8:]])
    with pytest.raises(ValueError, match="there are 3 prompts to forget and 8 to retain that are no"):
        attack.changes(few, attack.options("quick"))
    model, tokenizer = plain_model(folder), AutoTokenizer.from_pretrained(folder)
    found = prompt_states(model, tokenizer, train[:3])
    for one, state in zip(train[:3], found, strict=True):
        ids = tokenizer.apply_chat_template(one.messages, add_generation_prompt=True, return_tensors="pt")
        kept = model(ids["input_ids"], output_hidden_states=True).hidden_states
        torch.testing.assert_close(state[0].float(), kept[1][0, -1], rtol=0, atol=1e-5)


# Models that are refused.


ATTACKS_OF_WEIGHTS: dict[str, Callable[[Path, Path], object]] = {
    "rounding": lambda model, out: quantise(model, 4, out),
    "direction": lambda model, out: orthogonalise(model, random_direction(24, 0), out),
}
FUSED = {"model.layers.0.mlp.experts.gate_up_proj": torch.randn(2, 24, 40)}
NAN = {"model.layers.1.mlp.up_proj.weight": torch.full((40, 24), torch.nan)}


@pytest.mark.parametrize(
    ("attack", "make", "more", "message"),
    [
        ("rounding", gpt2, {}, "has no linear weights in decoder layers named layers.N"),
        ("rounding", llama, FUSED, "has model.layers.0.mlp.experts.gate_up_proj of 3 axes"),
        ("rounding", llama, NAN, "up_proj.weight"),
        ("direction", gemma2, {}, "layernorm.weight, of which it is not known what it writes"),
        ("direction", gpt2, {}, "has no model.layers.N; this attack knows models built as Llama"),
    ],
)
def test_models_that_are_refused(attack, make, more, message, tmp_path):
    source = saved(make(), tmp_path / "model", more)
    with pytest.raises(ValueError, match=message) as raised:
        ATTACKS_OF_WEIGHTS[attack](source, tmp_path / "out")
    assert str(source) in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    assert not (tmp_path / "out").exists()
