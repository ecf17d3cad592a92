"""Log-probs of labels in float32, in chunks of bounded memory.

From logits: for attention without the package flash-attn, whose cross-entropy verl uses otherwise. verl's
own replacement works in the dtype of the logits, which is bfloat16 on GPUs, and loops over single tokens.
From the inputs of the head: for the engine of `shared_prompts`, which keeps no logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 64 * 2**20
"""Most bytes of one float32 copy of logits; a chunk is at least one row."""


def label_log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """log softmax(logits) at the labels, computed in float32 or, for float64 logits, in float64.

    The forward and the backward pass hold at most a few chunks of CHUNK_BYTES beside the logits and their
    gradient, which has the dtype of the logits.

    Args:
        logits: [..., V], any floating dtype.
        labels: [...], int64.

    Returns:
        [...], float32 or float64; differentiable once with respect to the logits.
    """
    flat = _LabelLogProbs.apply(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    return flat.view(labels.shape)


class _LabelLogProbs(torch.autograd.Function):
    """x_y - logsumexp(x) of each row; its gradient is onehot(y) - softmax(x)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        norms = torch.empty(labels.shape, dtype=dtype, device=logits.device)
        chosen = torch.empty_like(norms)
        for rows in _chunks(logits.shape[0], logits.shape[1], dtype):
            values = logits[rows].to(dtype)
            norms[rows] = values.logsumexp(-1)
            chosen[rows] = values.gather(-1, labels[rows, None])[:, 0]
        ctx.save_for_backward(logits, labels, norms)
        return chosen - norms

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, labels, norms = ctx.saved_tensors
        found = torch.empty_like(logits)
        for rows in _chunks(logits.shape[0], logits.shape[1], norms.dtype):
            factor = gradient[rows, None]
            chunk = (logits[rows].to(norms.dtype) - norms[rows, None]).exp_().mul_(-factor)
            found[rows] = chunk.scatter_add_(-1, labels[rows, None], factor).to(found.dtype)
        return found, None


def head_log_probs(
    hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float = 1.0, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """log softmax(hidden weight^T / temperature) at the labels, in float32, or float64 for float64 inputs.

    Logits exist in chunks of CHUNK_BYTES only, in the forward and again in the backward pass.

    Args:
        hidden: [tokens, width].
        weight: [V, width], of a head without a bias.
        labels: [tokens], int64.

    Returns:
        Log-probs [tokens] and entropies [tokens] or None, differentiable once by hidden and weight.
    """
    found: tuple[Tensor, Tensor | None] = _HeadLogProbs.apply(
        hidden, weight, labels, temperature, with_entropy
    )
    return found


class _HeadLogProbs(torch.autograd.Function):
    """As `_LabelLogProbs`, through the head; without autocast, since bfloat16 logits would cost the log-probs
    three of their digits for a tenth of the work."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        norms, chosen, entropies = (hidden.new_empty(labels.shape) for _ in range(3))
        for rows in _chunks(len(labels), len(weight), hidden.dtype):
            logits = (hidden[rows] @ weight.t()).div_(temperature)
            norms[rows] = logits.logsumexp(-1)
            chosen[rows] = logits.gather(-1, labels[rows, None])[:, 0]
            if with_entropy:
                entropies[rows] = norms[rows] - logits.softmax(-1).mul_(logits).sum(-1)
        ctx.save_for_backward(hidden, weight, labels, norms, entropies)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return chosen - norms, entropies if with_entropy else None

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, of_chosen: Tensor, of_entropies: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, labels, norms, entropies = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for rows in _chunks(len(labels), len(weight), hidden.dtype):
            factor = of_chosen[rows, None]
            values = (hidden[rows] @ weight.t()).div_(ctx.temperature).sub_(norms[rows, None])
            slope = -factor
            if of_entropies is not None:
                slope = slope - of_entropies[rows, None] * (values + entropies[rows, None])
            of_logits = values.exp_().mul_(slope).scatter_add_(-1, labels[rows, None], factor)
            of_logits.div_(ctx.temperature)
            of_hidden[rows] = of_logits @ weight
            if of_weight is not None:
                of_weight.addmm_(of_logits.t(), hidden[rows])
        return of_hidden, of_weight, None, None, None


def _chunks(rows: int, width: int, dtype: torch.dtype) -> Iterator[slice]:
    size = max(1, CHUNK_BYTES // (width * dtype.itemsize))
    return (slice(start, start + size) for start in range(0, rows, size))
