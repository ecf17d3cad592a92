"""Bootstrap intervals of metrics.

The probes of a set are drawn again with replacement, as many as it has, all quantities of a probe together;
the sets themselves are fixed. The interval lies between percentiles of the metric over the resamples (Efron
and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13). docs/statistics.md says why this one, and
how often it holds the true value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from recipe.rerule.evaluation.statistics.samples import Array, Samples, Statistic, metrics

Interval = tuple[float, float]
Draws = dict[str, Array]
"""{metric: its value in each resample}."""

MOST_VALUES = 1 << 19
"""How many resampled values are held at a time (4 MiB: more is slower, since it leaves the cache)."""
_ROUNDING = 1e-12


def intervals(
    samples: Samples,
    statistics: Mapping[str, Statistic],
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, Interval]:
    """The interval of every metric, as {metric: (low, high)}; a metric that never changes has low = high.

    A metric's interval depends on `seed` and the metric's own sets alone, whatever else is passed.

    Raises:
        ValueError: as `check_samples` and `bootstrap` do, or a level outside (0, 1).
    """
    check_level(level)
    draws = bootstrap(samples, statistics, resamples, seed)
    points = metrics(samples, statistics)
    return {name: percentile_interval(draws[name], points[name], level) for name in statistics}


def bootstrap(samples: Samples, statistics: Mapping[str, Statistic], resamples: int, seed: int) -> Draws:
    """Every metric in each of `resamples` resamples: {metric: values of shape (resamples,)}.

    Two models' samples of the same sets and lengths are resampled alike under the same seed.

    Raises:
        ValueError: wrong samples (`check_samples`), fewer than one resample, a negative seed, or a metric
            that is not a finite number in some resample.
    """
    check_samples(samples)
    if resamples < 1:
        raise ValueError(f"{resamples} resamples: at least 1 is needed")
    return evaluate_blocks(statistics, _resampled(samples, resamples, seed))


def percentile_interval(draws: Array, point: float, level: float) -> Interval:
    """The central share `level` of `draws`; (point, point) where they differ from it by rounding alone."""
    if np.all(np.abs(draws - point) <= _ROUNDING * max(1.0, abs(point))):
        return point, point
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def check_level(level: float) -> None:
    """Raises ValueError where `level` is no confidence level."""
    if not 0 < level < 1:
        raise ValueError(f"the confidence level is {level}; it must lie between 0 and 1")


def check_samples(samples: Samples) -> None:
    """Raises ValueError unless every set has probes, and every quantity one finite value a probe."""
    for name, quantities in samples.items():
        shapes = {np.shape(values) for values in quantities.values()}
        if len(shapes) != 1 or len(shape := shapes.pop()) != 1 or shape[0] == 0:
            raise ValueError(f"set {name}: every quantity needs one value a probe, of one probe or more")
        for quantity, values in quantities.items():
            bad = np.flatnonzero(~np.isfinite(values))
            if bad.size:
                raise ValueError(
                    f"set {name}: {quantity} of probe {bad[0]} is {values[bad[0]]}, not a number"
                )


def stream(seed: int, name: str) -> np.random.Generator:
    """The random numbers of a set: they depend on no other set. Raises ValueError for a negative seed."""
    if seed < 0:
        raise ValueError(f"the seed is {seed}; it must not be negative")
    return np.random.default_rng([seed, *hashlib.sha256(name.encode()).digest()])


def block_sizes(count: int, samples: Samples, copies: int = 1) -> Iterator[int]:
    """Sizes that add up to `count`, of blocks that hold at most `MOST_VALUES` values or one resample.

    Each resample holds all values of `samples`, `copies` times, and one index a probe.
    """
    width = sum((copies * len(quantities) + 1) * _probes(quantities) for quantities in samples.values())
    most = max(1, MOST_VALUES // max(1, width))
    for start in range(0, count, most):
        yield min(most, count - start)


def evaluate_blocks(statistics: Mapping[str, Statistic], blocks: Iterable[Samples]) -> Draws:
    """Every metric of samples that come in blocks of shape (resamples, probes), one block after the other.

    Raises ValueError where a metric is not one finite number a resample.
    """
    parts: dict[str, list[Array]] = {name: [] for name in statistics}
    for block in blocks if statistics else ():
        size = next(len(values) for quantities in block.values() for values in quantities.values())
        for name, statistic in statistics.items():
            parts[name].append(_checked(name, statistic(block), size))
    return {name: np.concatenate(values) for name, values in parts.items()}


def _checked(metric: str, values: Array, size: int) -> Array:
    if np.shape(values) != (size,):
        raise ValueError(f"metric {metric} gives shape {np.shape(values)} for {size} resamples")
    if not np.isfinite(values).all():
        raise ValueError(f"metric {metric} is not a number in some resample: it has no bootstrap interval")
    return values


def _resampled(samples: Samples, resamples: int, seed: int) -> Iterator[Samples]:
    streams = {name: stream(seed, name) for name in samples}
    for size in block_sizes(resamples, samples):
        yield {
            name: _taken(quantities, _indices(streams[name], size, _probes(quantities)))
            for name, quantities in samples.items()
        }


def _taken(quantities: Mapping[str, Array], indices: NDArray[np.int64]) -> dict[str, Array]:
    return {quantity: values[indices] for quantity, values in quantities.items()}


def _indices(generator: np.random.Generator, size: int, probes: int) -> NDArray[np.int64]:
    return generator.integers(probes, size=(size, probes))


def _probes(quantities: Mapping[str, Array]) -> int:
    return len(next(iter(quantities.values())))
