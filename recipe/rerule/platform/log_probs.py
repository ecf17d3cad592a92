"""Log-probs of labels from logits in float32, in chunks of bounded memory.

For attention without the package flash-attn, whose cross-entropy verl uses otherwise. verl's own replacement
works in the dtype of the logits, which is bfloat16 on GPUs, and loops over single tokens.
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
        for rows in _chunks(logits, dtype):
            values = logits[rows].to(dtype)
            norms[rows] = values.logsumexp(-1)
            chosen[rows] = values.gather(-1, labels[rows, None])[:, 0]
        ctx.save_for_backward(logits, labels, norms)
        return chosen - norms

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, labels, norms = ctx.saved_tensors
        found = torch.empty_like(logits)
        for rows in _chunks(logits, norms.dtype):
            factor = gradient[rows, None]
            chunk = (logits[rows].to(norms.dtype) - norms[rows, None]).exp_().mul_(-factor)
            found[rows] = chunk.scatter_add_(-1, labels[rows, None], factor).to(found.dtype)
        return found, None


def _chunks(logits: Tensor, dtype: torch.dtype) -> Iterator[slice]:
    rows, width = logits.shape
    size = max(1, CHUNK_BYTES // (width * dtype.itemsize))
    return (slice(start, start + size) for start in range(0, rows, size))
