"""Hidden states of rows, packed or padded; the direction of the control vector; which parameters train."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from recipe.rerule.unlearning import hidden
from tests.unlearning import made

ROWS = [torch.tensor([4, 9, 2]), torch.tensor([7, 3, 5, 8, 6]), torch.tensor([1])]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of two layers."""
    return made.plain_model(made.put_model(tmp_path_factory.mktemp("model")))


def engine_of(model: Any, layer: int) -> Any:
    engine = SimpleNamespace(module=model, prepare_model_outputs=lambda **_: {"log_probs": torch.zeros(())})
    hidden.add_to_output(engine, layer)
    return engine


def output_of(engine: Any) -> dict[str, Tensor]:
    rows = {"input_ids": torch.nested.nested_tensor(ROWS, layout=torch.jagged)}
    found: dict[str, Tensor] = engine.prepare_model_outputs(output=None, micro_batch=rows)
    return found


@pytest.mark.parametrize("packed", [True, False])
def test_each_row_has_its_own_hidden_states(packed: bool, model: Any) -> None:
    engine = engine_of(model, 0)
    if packed:
        positions = torch.cat([torch.arange(len(row)) for row in ROWS])[None]
        row = torch.repeat_interleave(torch.arange(len(ROWS)), torch.tensor([len(row) for row in ROWS]))
        seen = (row[:, None] == row) & torch.ones(len(row), len(row)).tril().bool()
        mask = torch.where(seen, 0.0, -torch.inf)[None, None]
        model(torch.cat(ROWS)[None], position_ids=positions, attention_mask=mask)
    else:
        model(nn.utils.rnn.pad_sequence(ROWS, batch_first=True))
    found = output_of(engine)
    assert set(found) == {"log_probs", "hidden"}
    for row, states in zip(ROWS, found["hidden"].unbind(), strict=True):
        expected = model.model(row[None], output_hidden_states=True).hidden_states[1][0]
        torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-5)


def test_recomputed_activations_give_the_same_gradient_and_the_next_pass_its_own(model: Any) -> None:
    engine, found = engine_of(model, 1), []
    model.train()
    for recompute in (False, True):
        model.gradient_checkpointing_enable({"use_reentrant": False}) if recompute else None
        for rows in (ROWS, [row + 1 for row in ROWS]):
            model(nn.utils.rnn.pad_sequence(rows, batch_first=True))
            states = output_of(engine)["hidden"].values()
            model.zero_grad()
            states.square().sum().backward()
            gradient = model.model.layers[0].mlp.down_proj.weight.grad
            assert model.lm_head.weight.grad is None
            found.append((states.detach(), gradient))
    model.gradient_checkpointing_disable()
    model.eval()
    for plain, recomputed in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(plain, recomputed)
    assert not torch.allclose(found[0][0], found[1][0])


def test_the_direction_has_length_1_and_follows_from_its_seed() -> None:
    """Both public codes draw torch.rand, whose entries are not negative."""
    one, drawn = hidden.direction(64, 3), torch.rand(64, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(one, drawn / (drawn**2).sum().sqrt())
    assert one.min() >= 0
    assert not torch.equal(one, hidden.direction(64, 4))


OF_A_LAYER = [f"self_attn.{part}_proj" for part in "qkvo"]
OF_A_LAYER += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]


@pytest.mark.parametrize(
    ("layer", "count", "name", "expected"),
    [
        (1, 1, "down_proj", ["model.layers.1.mlp.down_proj.weight"]),
        (1, 3, "down_proj", [f"model.layers.{n}.mlp.down_proj.weight" for n in (0, 1)]),
        (0, 3, "mlp", [f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up", "down")]),
        (0, 1, "proj", []),
        (1, 1, None, [f"model.layers.1.{part}.weight" for part in OF_A_LAYER]),
    ],
)
def test_what_trains(layer: int, count: int, name: str | None, expected: list[str], model: Any) -> None:
    hidden.train_alone(model, hidden.trained(model, layer, count, name))
    assert [key for key, value in model.named_parameters() if value.requires_grad] == expected
    model.requires_grad_(True)


def test_layers_are_found_with_an_adapter_and_missed_where_there_are_none(tmp_path: Path) -> None:
    plain = made.plain_model(made.put_model(tmp_path))
    own = plain.model.layers
    assert hidden.layers(get_peft_model(plain, LoraConfig(target_modules="all-linear"))) is own
    gpt = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=10))
    with pytest.raises(ValueError, match=r"^GPT2LMHeadModel keeps no list of decoder layers"):
        hidden.layers(gpt)
