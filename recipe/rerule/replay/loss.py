"""The replay loss: importance-weighted policy gradient, plus KL to the reference policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

MAX_KL = 10.0
"""verl's bound on a token's KL estimate; above it the token has no KL gradient."""

Aggregate = Callable[[Tensor, Tensor], Tensor]
Divergence = Callable[[Tensor, Tensor], Tensor]


class ReplayLoss(NamedTuple):
    """Scalars; ``total`` = ``policy_gradient`` + kl_coef * ``kl``."""

    total: Tensor
    policy_gradient: Tensor
    kl: Tensor


def k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Schulman's low-variance KL(pi_theta || pi_ref) of each token: exp(d) - d - 1, d = ref - log pi."""
    difference = ref_log_probs - log_probs
    return difference.exp() - difference - 1


def low_var_kl(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """verl's `low_var_kl` of each token: `k3`, bounded by MAX_KL."""
    return k3(log_probs, ref_log_probs).clamp(max=MAX_KL)


def replay_loss(
    log_probs: Tensor,
    weights: Tensor,
    advantages: Tensor,
    mask: Tensor,
    aggregate: Aggregate,
    ref_log_probs: Tensor | None = None,
    kl_coef: float = 0.0,
    kl: Divergence = k3,
) -> ReplayLoss:
    """Loss whose gradient is -rho~ A grad log pi, aggregated, plus that of the KL term.

    Args:
        log_probs: [rows, T], log pi_theta with gradient.
        weights: [rows, T], rho~ as returned by ``importance.weights``.
        advantages: [rows, T], as stored.
        mask: [rows, T], non-zero for valid tokens; values off the mask are ignored, NaN included.
        aggregate: (values [rows, T], mask [rows, T]) to a scalar, the same as in the on-policy loss.
        ref_log_probs: [rows, T], log pi_ref; None turns the KL term off.
        kl_coef: factor of the KL term.
        kl: (log_probs, ref_log_probs) to the divergence of each token.

    Raises:
        ValueError: a KL coefficient without reference log-probs.
    """
    if ref_log_probs is None and kl_coef != 0:
        raise ValueError(f"the KL coefficient of the replay loss is {kl_coef} but ref_log_probs are missing")
    valid = mask.bool()
    current = torch.where(valid, log_probs, 0.0)
    factor = torch.where(valid, weights.detach().to(current.dtype) * advantages.detach(), 0.0)
    policy_gradient = aggregate(-factor * current, mask)
    if ref_log_probs is None:
        return ReplayLoss(policy_gradient, policy_gradient, torch.zeros_like(policy_gradient))
    divergence = aggregate(kl(current, torch.where(valid, ref_log_probs.detach(), 0.0)), mask)
    return ReplayLoss(policy_gradient + kl_coef * divergence, policy_gradient, divergence)


def token_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over all valid tokens of [rows, T] (verl's "token-mean")."""
    return (values * mask).sum() / mask.sum()


def seq_mean_token_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum over each row's valid tokens, mean over the rows that have any (verl's "seq-mean-token-sum")."""
    return (values * mask).sum() / mask.bool().any(dim=-1).sum()


def seq_mean_token_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over each row's valid tokens, mean over the rows that have any (verl's "seq-mean-token-mean")."""
    row_means = (values * mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)
    return row_means.sum() / mask.bool().any(dim=-1).sum()
