"""Packed rows attend as they do alone, side by side, or in transformers' own padded batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from recipe.rerule.platform import attention

ROWS = [[5, 6, 7, 8, 9], [10], [11, 12, 13]]


@pytest.fixture
def installed() -> Iterator[None]:
    attention.install()
    yield
    AttentionInterface.register("sdpa", sdpa_attention_forward)
    AttentionMaskInterface.register("sdpa", sdpa_mask)


def model(kv_heads: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=kv_heads,
            eos_token_id=None,
            attn_implementation="sdpa",
        )
    ).double()


def packed(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.tensor([[token for row in rows for token in row]]),
        "position_ids": torch.tensor([[place for row in rows for place in range(len(row))]]),
    }


def gradient(of: torch.nn.Module, logits: torch.Tensor) -> torch.Tensor:
    of.zero_grad()
    logits.logsumexp(-1).square().sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in of.parameters()])


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.usefixtures("installed")
def test_packed_rows_give_the_logits_and_gradient_of_each_row_alone(kv_heads: int) -> None:
    llama = model(kv_heads)
    alone = torch.cat([llama(input_ids=torch.tensor([row]), use_cache=False).logits[0] for row in ROWS])
    expected = gradient(llama, alone)
    together = llama(**packed(ROWS), use_cache=False).logits[0]
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient(llama, together), expected, rtol=1e-10, atol=1e-12)


def test_transformers_own_mask_gives_the_same() -> None:
    """The reference is the library as it is, without what we register."""
    llama = model()
    expected = llama(**packed(ROWS), use_cache=False).logits
    attention.install()
    try:
        found = llama(**packed(ROWS), use_cache=False).logits
    finally:
        AttentionInterface.register("sdpa", sdpa_attention_forward)
        AttentionMaskInterface.register("sdpa", sdpa_mask)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("installed")
def test_padded_rows_are_left_to_transformers() -> None:
    llama = model()
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in ROWS], batch_first=True)
    mask = padded.ne(0).long()
    found = llama(input_ids=padded, attention_mask=mask, use_cache=False).logits[mask.bool()]
    torch.testing.assert_close(found, llama(**packed(ROWS), use_cache=False).logits[0])


@pytest.mark.usefixtures("installed")
def test_generation_with_a_cache_still_works() -> None:
    llama = model()
    prompt = torch.tensor([[5, 6, 7]])
    found = llama.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=None)
    for _ in range(4):
        token = llama(input_ids=prompt, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
        prompt = torch.cat([prompt, token], dim=1)
    assert found.tolist() == prompt.tolist()


def test_only_one_unpadded_row_goes_without_a_mask() -> None:
    assert attention.mask_unless_packed(1, 5, 5, allow_is_causal_skip=False) is None
    masks = [
        attention.mask_unless_packed(2, 5, 5, allow_is_causal_skip=False),
        attention.mask_unless_packed(1, 5, 5, torch.ones(1, 5, dtype=torch.bool), allow_is_causal_skip=False),
        attention.mask_unless_packed(1, 5, 5, local_size=2, allow_is_causal_skip=False),
        attention.mask_unless_packed(1, 2, 5, q_offset=3, allow_is_causal_skip=False),
    ]
    assert [mask is None for mask in masks] == [False] * 4


def test_without_positions_packed_rows_are_refused() -> None:
    rows = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match="use_remove_padding=false"):
        attention.packed_sdpa(torch.nn.Linear(1, 1), rows, rows, rows, None)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_each_token_has_its_place(lengths: list[int]) -> None:
    positions = torch.tensor([[place for length in lengths for place in range(length)]])
    index, kept = attention.row_index(positions)
    assert list(index.shape) == [len(lengths), max(lengths)]
    assert index.flatten()[kept].tolist() == list(range(sum(lengths)))
    assert [row[:length].tolist() for row, length in zip(index, lengths, strict=True)] == [
        list(range(sum(lengths[:number]), sum(lengths[: number + 1]))) for number in range(len(lengths))
    ]


SOFTCAP = 0.5


def gemma2(implementation: str, window: int = 64) -> Gemma2ForCausalLM:
    """With scores far above the cap, in a layer with a window and one without; float32, as in eager."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        query_pre_attn_scalar=8,
        initializer_range=0.5,
        attn_logit_softcapping=SOFTCAP,
        sliding_window=window,
        pad_token_id=0,
        eos_token_id=None,
        attn_implementation=implementation,
    )
    return Gemma2ForCausalLM(config)


def test_transformers_own_sdpa_leaves_the_cap_out() -> None:
    """Why ours has it: where this fails, transformers has learnt it."""
    row = {"input_ids": torch.tensor([ROWS[0]]), "use_cache": False}
    assert (gemma2("sdpa")(**row).logits - gemma2("eager")(**row).logits).abs().max() > 0.1


@pytest.mark.parametrize("window", [64, 2])
@pytest.mark.usefixtures("installed")
def test_capped_scores_give_the_logits_and_gradient_of_eager_attention(window: int) -> None:
    eager, capped = gemma2("eager", window), gemma2("sdpa", window)
    alone = torch.cat([eager(input_ids=torch.tensor([row]), use_cache=False).logits[0] for row in ROWS])
    expected = gradient(eager, alone)
    together = capped(**packed(ROWS), use_cache=False).logits[0]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(gradient(capped, together), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("window", [64, 2])
@pytest.mark.usefixtures("installed")
def test_capped_scores_of_padded_rows_are_those_of_eager_attention(window: int) -> None:
    """Padding before a row and behind one, as prompts and answers have it."""
    ids = torch.tensor([[0, 0, 5, 6, 7], [8, 9, 10, 0, 0]])
    mask = ids.ne(0).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    row = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "use_cache": False}
    found, expected = (gemma2(kind, window)(**row).logits[mask.bool()] for kind in ("sdpa", "eager"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.usefixtures("installed")
def test_generation_with_a_cache_is_capped_too() -> None:
    prompt = torch.tensor([[5, 6, 7]])
    how = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    found, expected = (
        torch.stack(gemma2(kind).generate(prompt, attention_mask=torch.ones_like(prompt), **how).logits)
        for kind in ("sdpa", "eager")
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
