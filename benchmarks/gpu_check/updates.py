"""The two updates of a training step in plain torch, as verl's FSDP worker makes them on one rank.

Rows are packed one after another, cut into micro-batches, and scored in float32 whatever the model's dtype.
Weighing and loss are the recipe's own. What the worker itself does is checked by `verl_worker`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recipe.rerule.platform.log_probs import label_log_probs
from recipe.rerule.replay import ImportanceConfig, log_ratios, low_var_kl, replay_loss, weigh

Batch = dict[str, Tensor]
"""As `replay.pad_groups` makes it."""


@dataclass(frozen=True)
class Outcome:
    """Log-probs and weights of the batch, [rows, T] float32 and 0 off the mask; the loss over all of it."""

    log_probs: Tensor
    weights: Tensor
    loss: float


def packed_log_probs(model: Any, batch: Batch) -> Tensor:
    """log pi of the responses, float32 [rows, T], 0 off the attention mask; all rows in one packed pass."""
    valid = batch["attention_mask"].bool()
    ids = batch["input_ids"][valid]
    logits = model(
        input_ids=ids[None], position_ids=batch["position_ids"][valid][None], use_cache=False
    ).logits[0]
    scored = torch.zeros(valid.shape, device=ids.device).masked_scatter(
        valid, label_log_probs(logits, ids.roll(-1))
    )
    return scored[:, -batch["responses"].shape[1] - 1 : -1]


def replay_update(
    model: Any, batch: Batch, micro_batch: int, config: ImportanceConfig, kl_coef: float
) -> Outcome:
    """Forward and backward passes of a replay update; gradients are left in the parameters.

    With one micro-batch the training pass has all log-probs and weighs; with several a pass without gradient
    comes first.
    """
    parts, mask = list(micro_batches(batch, micro_batch)), batch["response_mask"]
    single = len(parts) == 1
    with torch.set_grad_enabled(single):
        passes = [packed_log_probs(model, part) for part in parts]
    log_probs = torch.cat(passes)
    weights = weigh(log_ratios(log_probs, batch["old_log_probs"], mask), mask, config)[0].float()
    loss = sum(
        _descend(passes[0] if single else packed_log_probs(model, part), own, part, batch, kl_coef)
        for part, own in zip(parts, weights.split(micro_batch), strict=True)
    )
    return Outcome(log_probs.detach(), weights, loss)


def on_policy_update(model: Any, batch: Batch, micro_batch: int, kl_coef: float) -> float:
    """The same of an on-policy update at ratio 1, whose gradient is that of weights 1; returns the loss."""
    ones = torch.ones_like(batch["advantages"])
    return sum(
        _descend(packed_log_probs(model, part), own, part, batch, kl_coef)
        for part, own in zip(micro_batches(batch, micro_batch), ones.split(micro_batch), strict=True)
    )


def micro_batches(batch: Batch, rows: int) -> Iterator[Batch]:
    """Parts of at most so many rows, in order."""
    for start in range(0, len(batch["responses"]), rows):
        yield {name: plane[start : start + rows] for name, plane in batch.items()}


def _descend(log_probs: Tensor, weights: Tensor, part: Batch, whole: Batch, kl_coef: float) -> float:
    """Backward pass of one micro-batch; its share of the token mean over the whole batch."""
    tokens = whole["response_mask"].sum()
    loss = replay_loss(
        log_probs,
        weights,
        part["advantages"],
        part["response_mask"],
        lambda values, mask: (values * mask).sum() / tokens,
        ref_log_probs=part["ref_log_prob"],
        kl_coef=kl_coef,
        kl=low_var_kl,
    ).total
    loss.backward()
    return float(loss.detach())
