"""The paired permutation test between two models that answered the same probes.

Null hypothesis: on every probe, which of the two models gave which answer is as good as tossed. Then
exchanging the two models' values on any of the probes, all quantities of a probe together, gives differences
as likely as the one that was seen, whatever the metric is. The p-value is the share of exchanges whose
difference is at least as large, in either direction (Fisher, The Design of Experiments, 1935).
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from recipe.rerule.evaluation.statistics.intervals import block_sizes, evaluate_blocks, stream
from recipe.rerule.evaluation.statistics.samples import Array, Samples, Statistic, metrics

Masks = Mapping[str, NDArray[np.bool_]]
"""{set: whether to exchange, of shape (exchanges, probes)}."""

_ROUNDING = 1e-12


def permutation_test(
    a: Samples, b: Samples, statistics: Mapping[str, Statistic], permutations: int, seed: int
) -> dict[str, float]:
    """The two-sided p-value of every metric's difference between `a` and `b`, of the same sets and lengths.

    Probes on which the two agree make no difference, exchanged or not. Where the others have at most
    `permutations` exchanges, all of those are counted, and the p-value is exact. Otherwise that many are
    drawn, and one is added to the count and to the number of exchanges, so that under the null hypothesis
    p <= alpha has at most the chance alpha (Phipson and Smyth 2010). A metric's p-value depends on `seed` and
    the metric's own sets alone.
    """
    differing = {name: _differing(a[name], b[name]) for name in a}
    drawn: dict[str, Statistic] = {}
    counted: dict[tuple[str, ...], dict[str, Statistic]] = {}
    for name, statistic in statistics.items():
        used = sets_of(statistic, a)
        if 2 ** sum(differing[key].size for key in used) <= permutations:
            counted.setdefault(used, {})[name] = statistic
        else:
            drawn[name] = statistic
    found: dict[str, float] = {}
    for used, group in counted.items():
        found |= _exact(_only(a, used), _only(b, used), group, _only(differing, used))
    if drawn:
        found |= _drawn(a, b, drawn, permutations, seed)
    return {name: found[name] for name in statistics}


def sets_of(statistic: Statistic, samples: Samples) -> tuple[str, ...]:
    """The sets of `samples` that the statistic reads, in their order: it is computed once to see which."""
    noting = _NotingReads(samples)
    statistic(noting)
    return tuple(name for name in samples if name in noting.read)


class _NotingReads(UserDict[str, Mapping[str, Array]]):
    """Samples that note in `read` the sets that were asked for."""

    def __init__(self, samples: Samples) -> None:
        super().__init__(samples)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Mapping[str, Array]:
        self.read.add(name)
        return self.data[name]


def _exact(
    a: Samples, b: Samples, statistics: Mapping[str, Statistic], differing: Mapping[str, NDArray[np.int64]]
) -> dict[str, float]:
    exchanges = 2 ** sum(positions.size for positions in differing.values())
    larger = _count_larger(a, b, statistics, _all_masks(a, exchanges, differing))
    return {name: count / exchanges for name, count in larger.items()}


def _drawn(
    a: Samples, b: Samples, statistics: Mapping[str, Statistic], permutations: int, seed: int
) -> dict[str, float]:
    used = {key for statistic in statistics.values() for key in sets_of(statistic, a)}
    a, b = _only(a, used), _only(b, used)
    larger = _count_larger(a, b, statistics, _random_masks(a, permutations, seed))
    return {name: (count + 1) / (permutations + 1) for name, count in larger.items()}


def _count_larger(
    a: Samples, b: Samples, statistics: Mapping[str, Statistic], blocks: Iterable[Masks]
) -> dict[str, int]:
    """How many exchanges give at least the difference seen, in size; a hair less counts too, for rounding."""
    of_a, of_b = metrics(a, statistics), metrics(b, statistics)
    counts = dict.fromkeys(statistics, 0)
    for masks in blocks:
        first = evaluate_blocks(statistics, [_exchanged(a, b, masks)])
        second = evaluate_blocks(statistics, [_exchanged(b, a, masks)])
        for name in statistics:
            least = abs(of_a[name] - of_b[name]) - _ROUNDING * max(abs(of_a[name]), abs(of_b[name]))
            counts[name] += int(np.count_nonzero(np.abs(first[name] - second[name]) >= least))
    return counts


def _exchanged(a: Samples, b: Samples, masks: Masks) -> Samples:
    """`a` with the values of `b` where the masks say so: shape (exchanges, probes)."""
    return {
        name: {
            quantity: np.where(masks[name], b[name][quantity], values)
            for quantity, values in quantities.items()
        }
        for name, quantities in a.items()
    }


def _random_masks(samples: Samples, permutations: int, seed: int) -> Iterator[Masks]:
    streams = {name: stream(seed, name) for name in samples}
    for size in block_sizes(permutations, samples):
        yield {name: streams[name].random((size, _probes(samples[name]))) < 0.5 for name in samples}


def _all_masks(
    samples: Samples, exchanges: int, differing: Mapping[str, NDArray[np.int64]]
) -> Iterator[Masks]:
    """Every exchange of the differing probes once: exchange number n does what the bits of n say."""
    first = 0
    for size in block_sizes(exchanges, samples):
        numbers, bit, masks = np.arange(first, first + size), 0, {}
        for name, positions in differing.items():
            masks[name] = np.zeros((size, _probes(samples[name])), dtype=bool)
            masks[name][:, positions] = numbers[:, None] >> np.arange(bit, bit + positions.size) & 1
            bit += positions.size
        yield masks
        first += size


def _differing(a: Mapping[str, Array], b: Mapping[str, Array]) -> NDArray[np.int64]:
    """The probes on which any quantity differs."""
    return np.flatnonzero(np.any([a[quantity] != b[quantity] for quantity in a], axis=0))


def _only(items: Mapping, names: Iterable[str]) -> dict:
    wanted = set(names)
    return {name: item for name, item in items.items() if name in wanted}


def _probes(quantities: Mapping[str, Array]) -> int:
    return len(next(iter(quantities.values())))
