"""Packed rows attend as they do alone, or in transformers' own padded batch.

The reference is transformers as it is: its sdpa for Llama, in float64. For Gemma-2, whose scores are capped,
it is eager attention, which computes in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from recipe.rerule.platform import attention, sdpa

ROWS = [[5, 6, 7, 8, 9], [10], [14], [11, 12, 13]]
SHAPE: dict[str, Any] = {
    **{"vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "pad_token_id": 0, "eos_token_id": None},
}
LLAMA = {"rtol": 1e-10, "atol": 1e-12}
GEMMA = {"rtol": 1e-3, "atol": 1e-4}
Build = Callable[[str], torch.nn.Module]


def llama(kv_heads: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPE, num_key_value_heads=kv_heads, attn_implementation="sdpa")
    return LlamaForCausalLM(config).double()


def gemma2(implementation: str, window: int) -> Gemma2ForCausalLM:
    """With scores far above the cap, in a layer with a window and one without."""
    torch.manual_seed(0)
    own = {"num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 8, "initializer_range": 0.5}
    cap = {"attn_logit_softcapping": 0.5, "sliding_window": window}
    return Gemma2ForCausalLM(Gemma2Config(**SHAPE, **own, **cap, attn_implementation=implementation))


MODELS = pytest.mark.parametrize(
    ("build", "tolerance"),
    [
        (lambda kind: llama(kv_heads=4), LLAMA),
        (lambda kind: llama(kv_heads=2), LLAMA),
        (lambda kind: gemma2(kind, window=64), GEMMA),
        (lambda kind: gemma2(kind, window=2), GEMMA),
    ],
    ids=["llama", "llama, grouped", "gemma 2", "gemma 2, window"],
)
"""A model with sdpa or, for the reference, with another attention where sdpa leaves the cap out."""


def packed(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.tensor([[token for row in rows for token in row]]),
        "position_ids": torch.tensor([[place for row in rows for place in range(len(row))]]),
    }


def gradient(of: torch.nn.Module, logits: torch.Tensor) -> torch.Tensor:
    of.zero_grad()
    logits.logsumexp(-1).square().sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in of.parameters()])


@MODELS
def test_packed_rows_give_the_logits_and_gradient_of_each_row_alone(
    build: Build, tolerance: dict[str, float], install: Callable[[], None]
) -> None:
    reference, model = build("eager"), build("sdpa")
    rows = [torch.tensor([row]) for row in ROWS]
    alone = torch.cat([reference(input_ids=row, use_cache=False).logits[0] for row in rows])
    expected = gradient(reference, alone)
    install()
    together = model(**packed(ROWS), use_cache=False).logits[0]
    torch.testing.assert_close(together, alone, **tolerance)
    torch.testing.assert_close(gradient(model, together), expected, **tolerance)


@MODELS
def test_padded_rows_are_left_as_they_are(
    build: Build, tolerance: dict[str, float], install: Callable[[], None]
) -> None:
    """Padding before a row and behind one, as prompts and answers have it."""
    ids = torch.tensor([[0, 0, 5, 6, 7], [8, 9, 10, 0, 0]])
    mask = ids.ne(0).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    row = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "use_cache": False}
    expected = build("eager")(**row).logits
    install()
    found = build("sdpa")(**row).logits
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], **tolerance)


@MODELS
def test_generation_with_a_cache_still_works(
    build: Build, tolerance: dict[str, float], install: Callable[[], None]
) -> None:
    prompt = torch.tensor([[5, 6, 7]])
    how = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}

    def logits(kind: str) -> torch.Tensor:
        model: Any = build(kind)
        return torch.stack(model.generate(prompt, attention_mask=torch.ones_like(prompt), **how).logits)

    expected = logits("eager")
    install()
    torch.testing.assert_close(logits("sdpa"), expected, **tolerance)


def test_transformers_own_sdpa_leaves_the_cap_out() -> None:
    """Why ours has it: where this fails, transformers has learnt it."""
    row = {"input_ids": torch.tensor([ROWS[0]]), "use_cache": False}
    eager, sdpa = (gemma2(kind, window=64)(**row).logits for kind in ("eager", "sdpa"))
    assert (sdpa - eager).abs().max() > 0.1


def test_without_positions_packed_rows_are_refused() -> None:
    rows = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match="use_remove_padding=false"):
        attention.packed_sdpa(torch.nn.Linear(1, 1), rows, rows, rows, None)


@pytest.mark.parametrize(("given", "chosen"), [("sdpa", True), ("flash_attention_2", False), (None, False)])
def test_which_attention_is_chosen(given: str | None, chosen: bool) -> None:
    settings = {"override_config": {"attn_implementation": given} if given else {}}
    assert sdpa.is_chosen(OmegaConf.create(settings)) == chosen
