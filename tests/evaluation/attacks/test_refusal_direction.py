"""The refusal direction: how it is found, and the states of the models that are written without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from recipe.rerule.evaluation.attacks.forward import Piece, states
from recipe.rerule.evaluation.attacks.refusal_direction import (
    ATTACKS,
    orthogonalise,
    prompt_states,
    random_direction,
    refusal_direction,
)
from recipe.rerule.runs.weights import WeightsError
from tests.evaluation.attacks.made import material, probe
from tests.unlearning.made import plain_model, put_model

SIZES = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0}
PIECE = Piece([3, 1, 4, 1, 5, 9, 2, 6], 1, "text")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def save(model: Any, folder: Path, **settings: Any) -> Path:
    model.save_pretrained(folder, **settings)
    return folder


def made(kind: str, tied: bool) -> Any:
    """With biases that are not zeros, which would hide that one of them is left out."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = SIZES | {"initializer_range": 0.3, "tie_word_embeddings": tied}
    if kind == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**sizes, attention_bias=True, mlp_bias=True))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_()
    return model


@pytest.mark.parametrize(("kind", "tied"), [("llama", False), ("llama", True), ("qwen2", True)])
def test_no_state_of_the_written_model_has_a_part_along_the_direction(
    kind: str, tied: bool, tmp_path: Path
) -> None:
    source = save(made(kind, tied), tmp_path / "model", max_shard_size="8KB")
    direction = random_direction(16, seed=1)
    changed = orthogonalise(source, direction, tmp_path / "out")
    before, after = (AutoModelForCausalLM.from_pretrained(path) for path in (source, tmp_path / "out"))
    assert float((states(before, [PIECE])[0].double() @ direction.vector).abs().min()) > 1e-4
    assert float((states(after, [PIECE])[0].double() @ direction.vector).abs().max()) < 1e-5
    assert len(changed) == 1 + 3 * (4 if kind == "llama" else 2)
    for name, parameter in after.named_parameters():
        if name not in changed:
            assert torch.equal(parameter, before.get_parameter(name)), name
    # The output layer reads as before, though it was one tensor with the embedding.
    assert torch.equal(after.lm_head.weight, before.lm_head.weight)
    assert not torch.equal(after.model.embed_tokens.weight, before.model.embed_tokens.weight)
    again = orthogonalise(tmp_path / "out", direction, tmp_path / "twice")
    assert again == changed
    twice = AutoModelForCausalLM.from_pretrained(tmp_path / "twice").state_dict()
    for name, tensor in after.state_dict().items():
        torch.testing.assert_close(twice[name], tensor, rtol=0, atol=1e-7)


def test_a_planted_direction_is_found_at_its_layer() -> None:
    """The sides differ behind layer 2 of 5; the last layer, where they differ more, is left out."""
    forget, retain = drawn(40, 5, 8), drawn(30, 5, 8, seed=1)
    planted = drawn(8, seed=2)
    forget[:, 2] += 3 * planted / planted.norm()
    forget[:, 4] += 30.0
    found = refusal_direction(forget, retain)
    assert found.layer == 2
    wanted = forget[:, 2].mean(0) - retain[:, 2].mean(0)
    torch.testing.assert_close(found.vector, wanted / wanted.norm())
    assert float(found.vector @ (planted / planted.norm())) > 0.9
    assert found.distance is not None
    assert 1.5 < found.distance < 4.5
    same = torch.ones(4, 2, 8)
    with pytest.raises(ValueError, match="the same mean state"):
        refusal_direction(same, same)


def test_folders_without_the_direction_and_without_a_random_one(tmp_path: Path) -> None:
    source = put_model(tmp_path / "source")
    train = [probe(n, "fb", "forget" if n < 8 else "retain") for n in range(16)]
    given = material([probe(0)], [probe(1, section="retain")], train)
    (attack,) = ATTACKS
    assert attack.changes is not None
    (change,) = attack.changes(given, attack.options("quick"))
    folders = {"": tmp_path / "model", "random": tmp_path / "random"}
    assert (set(change.settings), change.scored) == (folders.keys(), given.asked)
    change.write(source, folders)
    vectors = {}
    for setting, written in folders.items():
        record = json.loads((written / "attack.json").read_text())
        assert record["model"] == str(source)
        assert (record["direction"]["layer"] is None) == (setting == "random")
        vectors[setting] = torch.tensor(record["direction"]["vector"], dtype=torch.float64)
        weight = load_file(written / "model.safetensors")["model.layers.1.mlp.down_proj.weight"].double()
        assert float((vectors[setting] @ weight).abs().max()) < 1e-6
    assert not torch.equal(vectors[""], vectors["random"])
    # Training prompts that are probes are left out.
    few = material([probe(0, "fb")], [], [*train[:4], *train[8:]])
    with pytest.raises(ValueError, match="there are 3 prompts to forget and 8 to retain that are no"):
        attack.changes(few, attack.options("quick"))


def test_states_of_prompts(tmp_path: Path) -> None:
    put_model(tmp_path / "model")
    model, tokenizer = plain_model(tmp_path / "model"), AutoTokenizer.from_pretrained(tmp_path / "model")
    prompts = [[{"role": "user", "content": f"Who wrote it{'?' * n}"}] for n in range(3)]
    found = prompt_states(model, tokenizer, [probe(0, messages=one) for one in prompts], batch_size=2)
    assert found.shape == (3, 2, 32)
    for prompt, state in zip(prompts, found, strict=True):
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_tensors="pt")
        kept = model(ids["input_ids"], output_hidden_states=True).hidden_states
        torch.testing.assert_close(state[0].float(), kept[1][0, -1], rtol=0, atol=1e-5)


def gemma2(folder: Path) -> Path:
    return save(Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8)), folder)


def gpt2(folder: Path) -> Path:
    return save(GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2)), folder)


def narrow(folder: Path) -> Path:
    return save(LlamaForCausalLM(LlamaConfig(**(SIZES | {"hidden_size": 8}))), folder)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (gemma2, "has model.layers.0.post_feedforward_layernorm.weight, of which it is not known"),
        (gpt2, "has no model.layers.N; this attack knows models built as Llama"),
        (narrow, "writes states of size 8, and the direction has 16"),
        (lambda folder: folder, "."),
    ],
)
def test_models_that_are_refused(make: Any, message: str, tmp_path: Path) -> None:
    source = make(tmp_path / "model")
    with pytest.raises(WeightsError, match=message) as raised:
        orthogonalise(source, random_direction(16, 0), tmp_path / "out")
    assert str(source) in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    assert not (tmp_path / "out").exists()
