"""Numbers of attacks and audits as functions of plain values; no model is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from recipe.rerule.evaluation.metrics import exact_memorization, extraction_strength, min_k_score

__all__ = [
    "exact_memorization",
    "expected_max",
    "extraction_strength",
    "leak_at_k",
    "min_k_plus_plus",
    "round_to_nearest",
]

FEWEST_BITS, MOST_BITS = 2, 8
_ROUNDING = 1e-12
"""Differences of this share of a log-probability are rounding in float64."""


def expected_max(scores: Sequence[float], k: int) -> float:
    """The expected highest score of k answers, from the scores of n sampled answers to one question.

    Unbiased: the mean of the maximum over all subsets of k of the n scores. With the scores in ascending
    order it is sum_i C(i-1, k-1) / C(n, k) x_i. k = 1 gives the mean and k = n the maximum.

    Raises:
        ValueError: k is below 1 or above the number of scores, or a score is not a finite number.
    """
    _check_k(k, len(scores))
    ordered = sorted(map(float, scores))
    _check_finite("score", ordered)
    subsets = math.comb(len(ordered), k)
    highest = enumerate(ordered[k - 1 :], k - 1)
    return math.fsum(math.comb(below, k - 1) / subsets * score for below, score in highest)


def leak_at_k(leaks: int, samples: int, k: int) -> float:
    """The probability that at least one of k answers leaks, of which `leaks` in `samples` sampled ones do.

    Unbiased: 1 - C(n - c, k) / C(n, k), the share of the subsets of k answers that hold a leak. The plug-in
    estimate 1 - (1 - c/n)^k is too low.

    Args:
        leaks: number of leaking answers (a count, not a share).

    Raises:
        ValueError: `leaks` is not between 0 and `samples`, or k is below 1 or above `samples`.
    """
    if not 0 <= leaks <= samples:
        raise ValueError(f"leaks is {leaks}; it is a count of the {samples} samples")
    _check_k(k, samples)
    subsets = math.comb(samples, k)
    return (subsets - math.comb(samples - leaks, k)) / subsets


def min_k_plus_plus(
    log_probs: Sequence[float], means: Sequence[float], deviations: Sequence[float], share: float
) -> float:
    """Min-K%++ (Zhang et al., arXiv:2404.02936): minus the mean of the lowest `share` of standardised tokens.

    A token's value is (log p - mean) / deviation, with mean and deviation of log p over the vocabulary under
    the model's own distribution. A token at the mean counts 0, and so does every token of a uniform
    distribution, whose deviation is 0. As for `min_k_score`, at least one token counts, a text without tokens
    scores 0, and the higher the score, the less the text looks like training data.

    Raises:
        ValueError: the three have different lengths, a value is not finite, a deviation is negative or is 0
            although the token is not at the mean, or the share is not above 0 and at most 1.
    """
    if not len(log_probs) == len(means) == len(deviations):
        raise ValueError(f"{len(log_probs)} log_probs, {len(means)} means and {len(deviations)} deviations")
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; it must be above 0 and at most 1")
    names = ("log_prob", "mean", "deviation")
    for name, values in zip(names, (log_probs, means, deviations), strict=True):
        _check_finite(name, values)
    return min_k_score(
        [_standardised(*token) for token in zip(log_probs, means, deviations, strict=True)], share
    )


def round_to_nearest(weights: Tensor, bits: int, group_size: int) -> Tensor:
    """Weights after symmetric quantisation by rounding, as ordinary numbers of the same dtype and shape.

    Every group of `group_size` neighbours of the last axis has its own step s = max|w| / (2^(bits-1) - 1).
    Each weight becomes s times the nearest whole number, half-way cases to the even one. Where `group_size`
    does not divide the axis, the last group of each row is shorter. Steps and codes are computed in float64.
    A second rounding changes nothing (in float64 itself: nothing beyond its precision).

    Args:
        weights: floating, of at least one axis, usually [outputs, inputs]; not changed. A numpy array gives
            a numpy array.
        bits: 2 to 8.

    Raises:
        ValueError: bits or group_size out of range, weights that are not floating or not finite.
    """
    if isinstance(weights, np.ndarray):
        return round_to_nearest(torch.from_numpy(weights), bits, group_size).numpy()
    _check_rounding(weights, bits, group_size)
    levels = 2 ** (bits - 1) - 1
    groups, width = _grouped(weights.double(), group_size), weights.shape[-1]
    steps = groups.abs().amax(-1, keepdim=True) / levels
    codes = (groups / steps.where(steps > 0, 1)).round().clamp(-levels, levels)
    return (codes * steps).flatten(-2)[..., :width].to(weights.dtype)


def _grouped(weights: Tensor, group_size: int) -> Tensor:
    """The last axis in groups, [..., groups, group size]; a shorter last group is filled with zeros."""
    width = weights.shape[-1]
    filled = torch.nn.functional.pad(weights, (0, -width % group_size))
    return filled.unflatten(-1, (-1, group_size))


def _standardised(log_prob: float, mean: float, deviation: float) -> float:
    difference = log_prob - mean
    if abs(difference) <= _ROUNDING * max(1.0, abs(mean)):
        return 0.0
    if deviation <= 0:
        raise ValueError(f"deviation is {deviation} where log_prob {log_prob} is not the mean {mean}")
    return difference / deviation


def _check_k(k: int, samples: int) -> None:
    if not 1 <= k <= samples:
        raise ValueError(f"k is {k}; with {samples} samples it must be between 1 and {samples}")


def _check_finite(name: str, values: Sequence[float]) -> None:
    for number, value in enumerate(values):
        if not math.isfinite(value):
            raise ValueError(f"{name} {number} is {value}, not a finite number")


def _check_rounding(weights: Tensor, bits: int, group_size: int) -> None:
    if not FEWEST_BITS <= bits <= MOST_BITS:
        raise ValueError(f"bits is {bits}; {FEWEST_BITS} to {MOST_BITS} are possible")
    if group_size < 1:
        raise ValueError(f"group_size is {group_size}; it must be at least 1")
    if not weights.is_floating_point() or not weights.ndim:
        raise ValueError(f"weights of dtype {weights.dtype} and {weights.ndim} axes cannot be rounded")
    if not bool(torch.isfinite(weights).all()):
        raise ValueError("the weights hold NaN or infinity")
