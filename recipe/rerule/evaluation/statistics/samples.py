"""Per-probe values as arrays, and the statistics over them that a table shows.

A statistic reduces the last axis and leaves the others alone. So the same function gives a metric of n
probes, and that metric for each of thousands of resamples of them at once (intervals, tests).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Samples = Mapping[str, Mapping[str, Array]]
"""{set of probes: {quantity: values}}; all quantities of a set have one shape (..., probes), in one order."""
Statistic = Callable[[Samples], Array]
"""Maps values of shape (..., probes) to a number for each leading index."""
Metrics = dict[str, float]


def metrics(samples: Samples, statistics: Mapping[str, Statistic]) -> Metrics:
    """Every statistic of `samples`, whose arrays have the probes as their only axis."""
    return {name: float(statistic(samples)) for name, statistic in statistics.items()}


def mean_of(quantity: str, sets: Sequence[str]) -> Statistic:
    """The mean of `quantity` over the probes of all `sets` together: every probe weighs the same."""
    return partial(_pooled, quantity=quantity, sets=tuple(sets))


def mean_of_means(quantity: str, sets: Sequence[str]) -> Statistic:
    """The unweighted mean over `sets` of the mean of `quantity`: every set weighs the same."""
    return partial(_unweighted, quantity=quantity, sets=tuple(sets))


def _pooled(samples: Samples, quantity: str, sets: tuple[str, ...]) -> Array:
    return np.concatenate([samples[name][quantity] for name in sets], axis=-1).mean(axis=-1)


def _unweighted(samples: Samples, quantity: str, sets: tuple[str, ...]) -> Array:
    return np.mean([samples[name][quantity].mean(axis=-1) for name in sets], axis=0)
