"""Importance weights of stored rollouts: rho~ = Normalize(Clip(pi_theta / pi_theta_old)).

A replay batch is spread over ranks, but Normalize and the logged statistics belong to the whole of it. Hence
``weigh``: ``importance_ratios`` on each shard; ``ImportanceStats`` added up over all shards; ``weights`` on
each shard given the sum. A unit is what has one ratio: a valid token, or a sequence with a valid token.
Everything is float64, without gradient.

Log ratios are limited to +-MAX_LOG_RATIO before exp, as verl does, so that ratios and their squares stay
finite; ratio_max and ratio_second_moment therefore saturate at exp(20) and exp(40).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from .config import ImportanceConfig, Level

MAX_LOG_RATIO = 20.0


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


def weights(units: Tensor, mask: Tensor, config: ImportanceConfig, stats: ImportanceStats) -> Tensor:
    """Importance weights rho~ of one shard, one a token.

    Args:
        units: float64 [units] of ``importance_ratios`` for `mask` and `config.level`.
        mask: [rows, T].
        config: level, clip range and whether to divide by the mean clipped ratio.
        stats: of the WHOLE replay batch, over all micro-batches and ranks.

    Returns:
        float64 [rows, T], 0 off the mask; at the sequence levels one value a row.
    """
    clipped = units.clamp(config.clip_low, config.clip_high)
    unit_weights = clipped / (stats.mean_weight if config.normalize else 1.0)
    valid = mask.bool()
    spread = torch.zeros(valid.shape, dtype=torch.float64, device=units.device)
    if config.level == "token":
        spread[valid] = unit_weights
        return spread
    spread[valid.any(dim=-1)] = unit_weights[:, None]
    return torch.where(valid, spread, 0.0)


def weigh(
    log_ratio: Tensor,
    mask: Tensor,
    config: ImportanceConfig,
    total: Callable[[ImportanceStats], ImportanceStats] = lambda stats: stats,
) -> tuple[Tensor, dict[str, float]]:
    """Weights rho~ of this shard's tokens, normalised over the whole replay batch, and its metrics.

    Args:
        log_ratio: float64 [rows, T] of ``log_ratios``.
        mask: [rows, T].
        total: the sum of all shards' statistics, from this shard's. Where it is collective, every rank must
            call ``weigh``.

    Returns:
        float64 [rows, T], 0 off the mask; ``ImportanceStats.metrics``.
    """
    units = importance_ratios(log_ratio, mask, config.level)
    stats = total(ImportanceStats.of(units, log_ratio, mask, config))
    return weights(units, mask, config, stats), stats.metrics()
