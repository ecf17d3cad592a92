"""What a replay update computes: importance weights of the drawn rollouts, and the loss that they weigh.

    rho~ = Normalize(Clip(pi_theta / pi_theta_old))
    loss = aggregate(-rho~ A log pi_theta) + kl_coef * aggregate(KL to the reference)

A replay batch is spread over ranks, but Normalize and the logged statistics belong to the whole of it. Hence
``weigh``: ``importance_ratios`` on each shard; ``ImportanceStats`` added up over all shards; weights on each
shard given the sum. A unit is what has one ratio: a valid token, or a sequence with a valid token.
Weights are float64, without gradient.

Log ratios are limited to +-MAX_LOG_RATIO before exp, as verl does, so that ratios and their squares stay
finite; ratio_max and ratio_second_moment therefore saturate at exp(20) and exp(40).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .config import ImportanceConfig, Level

MAX_LOG_RATIO = 20.0
MAX_KL = 10.0
"""verl's bound on a token's KL estimate; above it the token has no KL gradient."""

Aggregate = Callable[[Tensor, Tensor], Tensor]
Divergence = Callable[[Tensor, Tensor], Tensor]


def log_ratios(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """l = log pi_theta - log pi_old of every valid token.

    Args:
        log_probs, old_log_probs: [rows, T]; values off the mask are ignored, NaN included.
        mask: [rows, T], non-zero for valid response tokens.

    Returns:
        float64 [rows, T], 0 off the mask, not limited.
    """
    return torch.where(mask.bool(), log_probs.detach().double() - old_log_probs.detach().double(), 0.0)


def importance_ratios(log_ratio: Tensor, mask: Tensor, level: Level) -> Tensor:
    """Importance ratio pi_theta / pi_old of every unit, before clipping.

    Args:
        log_ratio: float64 [rows, T] of ``log_ratios``.
        mask: [rows, T].
        level: "token": exp(l); "sequence": exp(mean of l over the row's valid tokens); "sequence_sum":
            exp(their sum).

    Returns:
        float64 [units], positive: one a valid token in row-major order, or one a row with a valid token.
    """
    valid = mask.bool()
    if level == "token":
        return _limited(log_ratio[valid]).exp()
    counts = valid.sum(dim=-1)
    total = log_ratio.sum(dim=-1)[counts > 0]
    return _limited(total if level == "sequence_sum" else total / counts[counts > 0]).exp()


def _limited(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


@dataclass(frozen=True)
class ImportanceStats:
    """Sums over units of ratios r and clipped weights w, and over valid tokens of KL(pi_old || pi_theta).

    Additive: those of a batch are the ``+`` of those of its shards; ``ImportanceStats()`` is the zero.
    """

    count: float = 0.0
    sum_ratio: float = 0.0
    sum_squared_ratio: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    sum_weight: float = 0.0
    sum_squared_weight: float = 0.0
    tokens: float = 0.0
    sum_kl: float = 0.0
    max_ratio: float = 0.0

    @classmethod
    def of(cls, units: Tensor, log_ratio: Tensor, mask: Tensor, config: ImportanceConfig) -> ImportanceStats:
        """Statistics of one shard.

        Args:
            units: float64 [units] of ``importance_ratios``.
            log_ratio: float64 [rows, T] of ``log_ratios``.
            mask: [rows, T].
            config: whose clip range it is.
        """
        if units.numel() == 0:
            return cls()
        w = units.clamp(config.clip_low, config.clip_high)
        low, high = units < config.clip_low, units > config.clip_high
        divergence = _kl_old_current(_limited(log_ratio[mask.bool()]))
        ones = torch.ones_like
        summands = [
            ones(units),
            units,
            units.square(),
            low,
            high,
            w,
            w.square(),
            ones(divergence),
            divergence,
        ]
        return cls(*(float(value) for value in [*(values.sum() for values in summands), units.max()]))

    def __add__(self, other: ImportanceStats) -> ImportanceStats:
        sums, maximum = self.as_tensors()
        other_sums, other_maximum = other.as_tensors()
        return self.from_tensors(sums + other_sums, torch.maximum(maximum, other_maximum))

    def as_tensors(self) -> tuple[Tensor, Tensor]:
        """(float64 [9] to be summed over ranks, float64 [1] to be maximised over ranks)."""
        *sums, maximum = astuple(self)
        return torch.tensor(sums, dtype=torch.float64), torch.tensor([maximum], dtype=torch.float64)

    @classmethod
    def from_tensors(cls, sums: Tensor, maximum: Tensor) -> ImportanceStats:
        """Inverse of ``as_tensors``, after the ranks' tensors were reduced."""
        return cls(*sums.tolist(), *maximum.tolist())

    @property
    def mean_weight(self) -> float:
        """Mean clipped weight, what Normalize divides by; 1 when there is no unit."""
        return self.sum_weight / self.count if self.count else 1.0

    def metrics(self) -> dict[str, float]:
        """Moments of r before clipping, clipped shares, eta = (mean w)^2 / mean w^2 in (0, 1], and the KL.

        replay/kl_old_current estimates KL(pi_old || pi_theta) a token, from the stored samples of pi_old.
        Returns an empty dict when there is no unit.
        """
        if not self.count:
            return {}
        effective = self.sum_weight**2 / (self.count * self.sum_squared_weight)
        return {
            "replay/ratio_mean": self.sum_ratio / self.count,
            "replay/ratio_max": self.max_ratio,
            "replay/ratio_second_moment": self.sum_squared_ratio / self.count,
            "replay/clipped_low": self.clipped_low / self.count,
            "replay/clipped_high": self.clipped_high / self.count,
            "replay/effective_sample_size": min(1.0, effective),  # rounding may carry it past 1
            "replay/kl_old_current": self.sum_kl / self.tokens,
        }


def _kl_old_current(log_ratio: Tensor) -> Tensor:
    """Schulman's k3 of KL(pi_old || pi_theta) of each token sampled from pi_old: exp(l) - 1 - l >= 0.

    Unbiased, since exp(l) has mean 1 under pi_old. expm1, because the terms nearly cancel for small l.
    """
    return log_ratio.expm1() - log_ratio


def weigh(
    log_ratio: Tensor,
    mask: Tensor,
    config: ImportanceConfig,
    total: Callable[[ImportanceStats], ImportanceStats] = lambda stats: stats,
    advantages: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Weights rho~ of this shard's tokens, normalised over the whole replay batch, and its metrics.

    With `config.trust_region`, a token has weight 0 where its ratio is beyond the clip range on the side to
    which its advantage pushes it. PPO's clipped objective (arXiv:1707.06347) has no gradient there either. It
    counts in the mean by which Normalize divides.

    Args:
        log_ratio: float64 [rows, T] of ``log_ratios``.
        mask: [rows, T].
        config: level, clip range, whether to divide by the mean clipped ratio, and the trust region.
        total: the sum of all shards' statistics, from this shard's. Where it is collective, every rank must
            call ``weigh``.
        advantages: [rows, T], as stored, for the trust region.

    Returns:
        float64 [rows, T], 0 off the mask; ``ImportanceStats.metrics``.

    Raises ValueError: a trust region without advantages.
    """
    units = importance_ratios(log_ratio, mask, config.level)
    stats = total(ImportanceStats.of(units, log_ratio, mask, config))
    clipped = units.clamp(config.clip_low, config.clip_high)
    weights = _of_tokens(clipped / (stats.mean_weight if config.normalize else 1.0), mask, config.level)
    if config.trust_region:
        if advantages is None:
            raise ValueError("replay.importance.trust_region is true, but there are no advantages")
        ratio = _of_tokens(units, mask, config.level)
        beyond = (advantages > 0) & (ratio > config.clip_high) | (advantages < 0) & (ratio < config.clip_low)
        weights = torch.where(beyond, 0.0, weights)
    return weights, stats.metrics()


def _of_tokens(units: Tensor, mask: Tensor, level: Level) -> Tensor:
    """[rows, T] of values of units, 0 off the mask; at the sequence levels one value a row."""
    valid = mask.bool()
    spread = torch.zeros(valid.shape, dtype=torch.float64, device=units.device)
    if level == "token":
        spread[valid] = units
        return spread
    spread[valid.any(dim=-1)] = units[:, None]
    return torch.where(valid, spread, 0.0)


class ReplayLoss(NamedTuple):
    """Scalars; ``total`` = ``policy_gradient`` + kl_coef * ``kl``."""

    total: Tensor
    policy_gradient: Tensor
    kl: Tensor


def low_var_kl(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """verl's `low_var_kl` of each token: Schulman's k3 of KL(pi_theta || pi_ref), bounded by MAX_KL.

    That is exp(d) - d - 1 with the limited log ratio d = ref - log pi.
    """
    difference = _limited(ref_log_probs - log_probs)  # without it, the gradient of a large one is NaN
    return (difference.exp() - difference - 1).clamp(max=MAX_KL)


def replay_loss(
    log_probs: Tensor,
    weights: Tensor,
    advantages: Tensor,
    mask: Tensor,
    aggregate: Aggregate,
    ref_log_probs: Tensor | None = None,
    kl_coef: float = 0.0,
    kl: Divergence = low_var_kl,
) -> ReplayLoss:
    """Loss whose gradient is -rho~ A grad log pi, aggregated, plus that of the KL term.

    Args:
        log_probs: [rows, T], log pi_theta with gradient.
        weights: [rows, T], rho~ as returned by ``weigh``.
        advantages: [rows, T], as stored.
        mask: [rows, T], non-zero for valid tokens; values off the mask are ignored, NaN included.
        aggregate: (values [rows, T], mask [rows, T]) to a scalar, the same as in the on-policy loss.
        ref_log_probs: [rows, T], log pi_ref; None turns the KL term off.
        kl_coef: factor of the KL term.
        kl: (log_probs, ref_log_probs) to the divergence of each token.

    Raises ValueError: a KL coefficient without reference log-probs.
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
