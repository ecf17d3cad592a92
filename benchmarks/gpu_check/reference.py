"""The replay update written out row by row, without padding, packing or chunks: what the check compares with.

Only for level "token", truncation "clip" and a normalised weight, the defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recipe.rerule.replay import ImportanceConfig, RolloutGroup


@dataclass(frozen=True)
class Expected:
    """Of one replay update, in float64: log pi and weight of every stored token, loss, gradient by name."""

    log_probs: Tensor
    weights: Tensor
    loss: float
    gradient: dict[str, Tensor]


def row_log_probs(model: Any, group: RolloutGroup) -> list[Tensor]:
    """log pi of the response tokens of each of the group's rows, by log_softmax of the model's logits."""
    device = next(model.parameters()).device
    prompt = group.prompt_ids.long().to(device)
    found = []
    for response in group.response_ids.long().to(device).split(group.lengths.tolist()):
        logits = model(torch.cat([prompt, response])[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
        found.append(logits.log_softmax(-1).gather(-1, response[:, None])[:, 0])
    return found


def replay_update(
    model: Any, groups: Sequence[RolloutGroup], config: ImportanceConfig, kl_coef: float
) -> Expected:
    """Loss and gradient of the update of `model`, whose dtype is float64."""
    log_probs = torch.cat([torch.cat(row_log_probs(model, group)) for group in groups])
    old, ref, advantages = (
        torch.cat([group.planes()[name] for group in groups]).double()
        for name in ("old_log_probs", "ref_log_probs", "advantages")
    )
    ratios = (log_probs.detach() - old).exp()
    weights = ratios.clamp(config.clip_low, config.clip_high)
    weights = weights / weights.mean()
    kl = (ref - log_probs).exp() - (ref - log_probs) - 1
    loss = (-weights * advantages * log_probs).mean() + kl_coef * kl.mean()
    model.zero_grad()
    loss.backward()
    gradient = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    return Expected(log_probs.detach(), weights, float(loss.detach()), gradient)
