"""Attention over rows packed one after another, for transformers' "sdpa".

verl packs the rows of a micro-batch into one (`use_remove_padding`) and tells them apart by positions that
start again at 0. Flash attention takes that; transformers gives its sdpa a mask of all tokens by all tokens
instead, whose cost grows with the square of the batch. Here the rows are laid side by side for the attention
alone, a small part of the work; everything else stays packed.

Gemma-2 caps attention scores, which transformers' sdpa leaves out without a word. `product_attention` has it.
It also takes the place of sdpa for short rows in bfloat16 on a processor, where it is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

SHORT_ROW = 96
"""Tokens. Up to so many, in bfloat16 on a processor, `product_attention` takes the place of torch's kernel,
whose backward pass is slow there. The bound limits the memory of scores, which grows with the square of the
row."""

_indices: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""`row_index` of each tensor of positions that is alive: every layer gets the same one, and on a GPU the host
would wait for its numbers in each of them."""


def install() -> None:
    """Make transformers' "sdpa" of this process understand packed rows; other inputs go to its own."""
    AttentionInterface.register("sdpa", packed_sdpa)
    AttentionMaskInterface.register("sdpa", mask_unless_packed)


def mask_unless_packed(
    batch_size: int,
    q_length: int,
    kv_length: int,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    **others: Any,
) -> torch.Tensor | None:
    """transformers' `sdpa_mask`, but no mask for one causal row without padding: it may hold packed rows.

    For a row that holds only itself, no mask means causal attention, so nothing changes there.
    """
    plain_causal = attention_mask is None and local_size is None and not use_vmap
    if batch_size == 1 and q_length == kv_length > 1 and plain_causal:
        return None
    return sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        attention_mask=attention_mask,
        local_size=local_size,
        use_vmap=use_vmap,
        **others,
    )


def packed_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' `sdpa_attention_forward`, causal within each of the rows packed into one.

    Args:
        query, key, value: [1, heads, tokens, head size] where rows are packed.
        others: `position_ids` [1, tokens], with 0 where a row starts; `softcap`, of models that cap their
            scores; and what sdpa takes besides.

    Returns:
        [1, tokens, heads, head size], None.

    Raises ValueError: one row without a mask and without positions, which could hold several.
    """
    attend: Callable[..., tuple[torch.Tensor, None]] = sdpa_attention_forward
    if others.get("softcap") is not None:
        attend = product_attention
    if query.shape[0] != 1 or attention_mask is not None or query.shape[2] != key.shape[2]:
        return attend(module, query, key, value, attention_mask, **others)
    position_ids = others.get("position_ids")
    if position_ids is None:
        raise ValueError(
            f"{type(module).__name__} does not tell attention the positions of its tokens, so packed rows "
            "cannot be told apart; set actor_rollout_ref.model.use_remove_padding=false"
        )
    if position_ids not in _indices:
        _indices[position_ids] = row_index(position_ids)
    index, kept = _indices[position_ids]
    rows = [_side_by_side(tensor, index) for tensor in (query, key, value)]
    if (query.device.type, query.dtype) == ("cpu", torch.bfloat16) and index.shape[1] <= SHORT_ROW:
        attend = product_attention
    output, _ = attend(module, *rows, None, **others)
    return output.flatten(0, 1).index_select(0, kept).unsqueeze(0), None


def product_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    softcap: float | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention by products of matrices: all scores of a call are in memory at once.

    Args:
        query: [rows, heads, queries, head size]; key, value: [rows, key heads, keys, head size].
        attention_mask: [rows or 1, heads or 1, queries, keys]: bool, true where a key is seen, or numbers
            that are added to the scores; None: each query sees the keys up to its place, a single query all.
        softcap: above 0: scores s become softcap tanh(s / softcap) (Gemma-2, arXiv 2408.00118, section 2),
            which torch's sdpa cannot do.
        scaling: what scores are multiplied by; None: one over the root of the head size.
        dropout: share of the weights that are dropped; 0 outside training.

    Returns:
        [rows, queries, heads, head size], None. The softmax is float32, or float64 for such inputs.
    """
    rows, heads, queries, size = query.shape
    key_heads, keys = key.shape[1:3]
    scale = size**-0.5 if scaling is None else scaling
    # The heads that share a key head are one product, so that keys and values are not repeated.
    scores = (query * scale).reshape(rows, key_heads, -1, size) @ key.transpose(2, 3)
    scores = scores.view(rows, heads, queries, keys)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if attention_mask is None and queries > 1:
        attention_mask = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).tril()
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    dtype = torch.promote_types(scores.dtype, torch.float32)
    weights = torch.nn.functional.dropout(scores.softmax(-1, dtype=dtype).to(value.dtype), p=dropout)
    output = weights.view(rows, key_heads, -1, keys) @ value
    return output.view(rows, heads, queries, size).transpose(1, 2).contiguous(), None


def row_index(position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How packed rows lie side by side.

    A run of rising positions that begins at 0 is a row. One that begins at p > 0 continues the first p tokens
    of the last row that began at 0: a response whose prompt is packed once, before another response to it.

    Args:
        position_ids: [1, tokens] integers.

    Returns:
        [rows, longest] int64 index of the token at each place; a place past a row's end has a later token,
        which causal attention never lets the row see; and [tokens] int64, each token's place, row by row.
    """
    positions = position_ids[0]
    starts = torch.nonzero(torch.diff(positions, prepend=positions.new_tensor([-2])) != 1).flatten()
    shared = positions[starts, None]
    roots = torch.where(shared[:, 0] == 0, starts, 0).cummax(0).values[:, None]
    ends = torch.diff(starts, append=starts.new_tensor([len(positions)]))[:, None] + shared
    steps = torch.arange(int(ends.max()), device=positions.device)
    index = torch.where(steps < shared, roots, starts[:, None] - shared) + steps
    own = (steps >= shared) & (steps < ends)
    return index.clamp(max=len(positions) - 1), torch.nonzero(own.flatten()).flatten()


def _side_by_side(packed: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """[1, heads, tokens, size] as [rows, heads, longest, size]."""
    by_token = packed[0].transpose(0, 1).contiguous()
    return by_token.index_select(0, index.flatten()).unflatten(0, index.shape).transpose(1, 2)
