"""Numbers of a table with facts as the unit: means, bootstrap intervals, paired tests (docs/report.md).

Probes that ask for one fact tend to be answered right or wrong together, so a fact is resampled and exchanged
with all of its probes, whatever sets they are in (cluster bootstrap: Davison and Hinkley, Bootstrap Methods
and their Application, 1997, section 3.8). Therefore the values of a set are added up by fact before anything
is drawn, and a statistic is a function of such sums. It reduces the last axis and leaves the others alone:
the same function gives a metric, and that metric in each of thousands of resamples.

Intervals lie between percentiles of the metric over resamples of the facts (Efron and Tibshirani, An
Introduction to the Bootstrap, 1993, chapter 13). Tests are paired permutation tests (Fisher, The Design of
Experiments, 1935).
"""

from __future__ import annotations

import hashlib
from collections import UserDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

if TYPE_CHECKING:  # its import takes two seconds
    import pandas as pd

Array = NDArray[np.float64]
Samples = Mapping[str, Mapping[str, Array]]
"""{set of probes: {quantity: values}}; the quantities of a set have one shape (..., probes), in one order."""
Facts = Mapping[str, Sequence[Hashable]]
"""{set: what each of its probes asks for}. Equal ones are one fact, in two sets too."""
Statistic = Callable[[Samples], Array]
"""Maps values of shape (..., probes or facts) to a number for each leading index."""
Metrics = dict[str, float]
Interval = tuple[float, float]

UNIT = "fact"
"""What intervals resample and tests exchange, as files say it."""
TEST = "paired permutation test, two-sided"
LEAST_FACTS = 6
"""With n facts that differ, no p-value is below 2 ** (1 - n): with 5 none is below 0.05."""
RESAMPLES, PERMUTATIONS, SEED, LEVEL = 2000, 9999, 0, 0.95
"""Of every interval and test of an evaluation."""
COUNT = "number of probes"
"""A quantity of sets that are added up by fact: how many probes each sum is of."""
MOST_VALUES = 1 << 19
"""How many resampled values are held at a time (4 MiB: more is slower, since it leaves the cache)."""
_ROUNDING = 1e-12


# Statistics.


def mean_of(quantity: str, sets: Sequence[str]) -> Statistic:
    """The mean of `quantity` over the probes of all `sets` together: every probe weighs the same."""

    def mean(samples: Samples) -> Array:
        total = sum(samples[name][quantity].sum(axis=-1) for name in sets)
        return np.asarray(total / sum(_count(samples[name], quantity) for name in sets))

    return mean


def mean_of_means(quantity: str, sets: Sequence[str]) -> Statistic:
    """The unweighted mean over `sets` of the mean of `quantity`: every set weighs the same.

    In a resample of facts that several sets share, a set may be left without probes: the mean is then over
    the others.
    """

    def mean(samples: Samples) -> Array:
        counts = np.stack([_count(samples[name], quantity) for name in sets])
        totals = np.stack([samples[name][quantity].sum(axis=-1) for name in sets])
        return np.asarray((totals / np.maximum(counts, 1)).sum(axis=0) / (counts > 0).sum(axis=0))

    return mean


def _count(quantities: Mapping[str, Array], quantity: str) -> Array:
    """The number of probes of a set, for each leading index."""
    if COUNT in quantities:
        return np.asarray(quantities[COUNT].sum(axis=-1))
    shape = quantities[quantity].shape
    return np.full(shape[:-1], float(shape[-1]))


def metrics(samples: Samples, statistics: Mapping[str, Statistic]) -> Metrics:
    """Every statistic of `samples`, whose arrays have the probes as their only axis."""
    return {name: float(statistic(samples)) for name, statistic in statistics.items()}


class _NotingReads(UserDict[str, Mapping[str, Array]]):
    """Samples that note in `read` the sets that were asked for."""

    def __init__(self, samples: Samples) -> None:
        super().__init__(samples)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Mapping[str, Array]:
        self.read.add(name)
        return self.data[name]


def sets_of(statistic: Statistic, samples: Samples) -> tuple[str, ...]:
    """The sets of `samples` that the statistic reads, in their order: it is computed once to see which."""
    noting = _NotingReads(samples)
    statistic(noting)
    return tuple(name for name in samples if name in noting.read)


def samples_of(table: pd.DataFrame, sets: Callable[[Any], Iterable[str]]) -> tuple[Samples, Facts]:
    """The metric columns of one model's rows by set, and what the rows of each set ask for.

    Args:
        table: a tidy table.
        sets: the names of the sets that a row, a dictionary, is in. Sets and rows keep their order.

    Returns:
        Of each set the columns of numbers that no row of it lacks.
    """
    members: dict[str, list[int]] = {}
    for place, row in enumerate(table.to_dict("records")):
        for name in sets(row):
            members.setdefault(name, []).append(place)
    numbers = {name: table[name].to_numpy() for name in table if table[name].dtype == np.float64}
    facts = table["fact"].to_numpy()
    samples = {
        name: {
            quantity: values[places]
            for quantity, values in numbers.items()
            if not np.isnan(values[places]).any()
        }
        for name, places in members.items()
    }
    return samples, {name: list(facts[places]) for name, places in members.items()}


# Facts.


@dataclass(frozen=True)
class Stratum:
    """Sets that have facts in common, directly or through others of them: their facts are drawn together.

    Attributes:
        name: names its random numbers; that of a single set is the set's.
        sums: the sets, their values added up by fact: shape (facts,), with COUNT. Where each probe asks for a
            fact of its own, the values themselves.
        count: how many facts there are.
    """

    name: str
    sums: Samples
    count: int


def strata(samples: Samples, facts: Facts | None) -> list[Stratum]:
    """The sets of `samples` in strata. Without `facts` every probe asks for a fact of its own.

    They depend on the sets given alone: two sets may have a fact in common with a third one only.
    """
    if facts is None:
        return [Stratum(name, {name: own}, len(next(iter(own.values())))) for name, own in samples.items()]
    groups: list[tuple[list[str], set[Hashable]]] = []
    for name in samples:
        joined = [group for group in groups if not group[1].isdisjoint(facts[name])]
        groups = [group for group in groups if group not in joined]
        names = [one for group in joined for one in group[0]] + [name]
        groups.append((names, set(facts[name]).union(*(group[1] for group in joined))))
    found = []
    for names, asked in groups:
        number: dict[Hashable, int] = {}  # in the order of the facts' first probes
        sums: dict[str, dict[str, Array]] = {}
        for name in sorted(names):
            places = [number.setdefault(fact, len(number)) for fact in facts[name]]
            weighed = {**samples[name], COUNT: np.ones(len(places))}
            sums[name] = {
                q: np.bincount(places, values, len(asked)).astype(float) for q, values in weighed.items()
            }
        found.append(Stratum("\n".join(sorted(names)), sums, len(number)))
    return found


def _by_sets(
    samples: Samples, statistics: Mapping[str, Statistic]
) -> dict[tuple[str, ...], dict[str, Statistic]]:
    """Statistics by the sets that they read: a metric's draws depend on its own sets alone."""
    found: dict[tuple[str, ...], dict[str, Statistic]] = {}
    for name, statistic in statistics.items():
        found.setdefault(sets_of(statistic, samples) or tuple(samples), {})[name] = statistic
    return found


def fact_count(statistic: Statistic, samples: Samples, facts: Facts | None) -> int:
    """How many facts the probes of a statistic ask for."""
    return sum(one.count for one in strata(_only(samples, sets_of(statistic, samples)), facts))


def with_enough_facts(
    statistics: Mapping[str, Statistic], samples: Samples, facts: Facts | None = None
) -> dict[str, Statistic]:
    """The statistics that look at LEAST_FACTS or more; without `facts` every probe asks for its own."""
    return {name: one for name, one in statistics.items() if fact_count(one, samples, facts) >= LEAST_FACTS}


def few_facts_warning(
    statistics: Mapping[str, Statistic], samples: Samples, shown: Iterable[str], facts: Facts | None = None
) -> list[str]:
    """One line on those of the `shown` metrics that have too few facts; none where none has."""
    counts = {name: fact_count(statistics[name], samples, facts) for name in shown if name in statistics}
    few = [f"{name} ({count})" for name, count in counts.items() if count < LEAST_FACTS]
    told = f"fewer than {LEAST_FACTS} facts, so no interval and no test: {', '.join(few)}; "
    return [f"{told}hold questions on more facts out, or give a file of probes"] if few else []


def _only(samples: Samples, names: Iterable[str]) -> Samples:
    return {name: samples[name] for name in names}


# Intervals.


def bootstrap(
    samples: Samples, statistics: Mapping[str, Statistic], facts: Facts | None = None
) -> dict[str, Array]:
    """Every metric, and behind it the metric in each resample of the facts: shape (1 + RESAMPLES,).

    Two models' samples of the same sets, lengths and facts are resampled alike: their arrays are subtracted
    as they are.

    Raises ValueError: a metric is not a finite number in some resample.
    """
    found: dict[str, Array] = {}
    for used, group in _by_sets(samples, statistics).items():
        units = strata(_only(samples, used), facts)
        streams = [_stream(unit.name) for unit in units]
        parts = {name: [np.array([float(one(samples))])] for name, one in group.items()}
        for size in _block_sizes(RESAMPLES, units):
            drawn: dict[str, Mapping[str, Array]] = {}
            for unit, stream in zip(units, streams, strict=True):
                chosen = stream.integers(unit.count, size=(size, unit.count))
                drawn |= {
                    name: {quantity: values[chosen] for quantity, values in quantities.items()}
                    for name, quantities in unit.sums.items()
                }
            for name, statistic in group.items():
                parts[name].append(_checked(name, statistic(drawn), size))
        found |= {name: np.concatenate(values) for name, values in parts.items()}
    return {name: found[name] for name in statistics}


def interval_of(found: Array) -> Interval:
    """The central share LEVEL of the resamples of a metric, as `bootstrap` gives them with the metric first.

    It is (metric, metric) where they differ from it by rounding alone.
    """
    point, draws = float(found[0]), found[1:]
    if np.all(np.abs(draws - point) <= _ROUNDING * max(1.0, abs(point))):
        return point, point
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def intervals(
    samples: Samples, statistics: Mapping[str, Statistic], facts: Facts | None = None
) -> dict[str, Interval]:
    """The interval of every metric, as {metric: (low, high)}; a metric that never changes has low = high.

    It depends on the metric's own sets alone, whatever else is passed. Raises ValueError as `bootstrap` does.
    """
    return {name: interval_of(found) for name, found in bootstrap(samples, statistics, facts).items()}


def _stream(name: str) -> np.random.Generator:
    """The random numbers of a stratum: they depend on no other one."""
    return np.random.default_rng([SEED, *hashlib.sha256(name.encode()).digest()])


def _block_sizes(count: int, units: Sequence[Stratum]) -> Iterator[int]:
    """Sizes that add up to `count`, of blocks that hold about MOST_VALUES values or one resample."""
    width = sum((len(q) + 1) * unit.count for unit in units for q in unit.sums.values())
    most = max(1, MOST_VALUES // max(1, width))
    for start in range(0, count, most):
        yield min(most, count - start)


def _checked(metric: str, values: Array, size: int) -> Array:
    if np.shape(values) != (size,):
        raise ValueError(f"metric {metric} gives shape {np.shape(values)} for {size} resamples")
    if not np.isfinite(values).all():
        raise ValueError(f"metric {metric} is not a number in some resample: it has no bootstrap interval")
    return values


# Paired tests.


def permutation_test(
    a: Samples, b: Samples, statistics: Mapping[str, Statistic], facts: Facts | None = None
) -> dict[str, float]:
    """The two-sided p-value of every metric's difference between `a` and `b`, of the same sets and lengths.

    Null hypothesis: of every fact, which of the two models gave which answers is as good as tossed. Then
    exchanging the two models' values on any of the facts gives differences as likely as the one that was
    seen, and the p-value is the share of exchanges whose difference is at least as large, in either
    direction.

    Facts on which the two agree make no difference. Where the others have at most PERMUTATIONS exchanges,
    all of those are counted, and the p-value is exact. Otherwise that many are drawn, and one is added to the
    count and to the number of exchanges, so that under the null hypothesis p <= alpha has at most the chance
    alpha (Phipson and Smyth 2010). A metric's p-value depends on the metric's own sets alone.
    """
    found: dict[str, float] = {}
    for used, group in _by_sets(a, statistics).items():
        pairs = list(zip(*(strata(_only(one, used), facts) for one in (a, b)), strict=True))
        differing = [_differing(*pair) for pair in pairs]
        exchanges = 2 ** sum(numbers.size for numbers in differing)
        exact = exchanges <= PERMUTATIONS
        seen = {name: float(one(a) - one(b)) for name, one in group.items()}
        least = {
            name: abs(seen[name]) - _ROUNDING * max(abs(float(one(a))), abs(float(one(b))))
            for name, one in group.items()
        }
        counts = dict.fromkeys(group, 0)
        units = [pair[0] for pair in pairs]
        blocks = _all_masks(units, differing) if exact else _random_masks(units)
        for masks in blocks:
            first: dict[str, Mapping[str, Array]] = {}
            second: dict[str, Mapping[str, Array]] = {}
            for (of_a, of_b), mask in zip(pairs, masks, strict=True):
                for name, quantities in of_a.sums.items():
                    both = {q: (values, of_b.sums[name][q]) for q, values in quantities.items()}
                    first[name] = {q: np.where(mask, two, one) for q, (one, two) in both.items()}
                    second[name] = {q: np.where(mask, one, two) for q, (one, two) in both.items()}
            for name, statistic in group.items():
                difference = _checked(name, statistic(first) - statistic(second), len(masks[0]))
                counts[name] += int(np.count_nonzero(np.abs(difference) >= least[name]))
        found |= {
            name: count / exchanges if exact else (count + 1) / (PERMUTATIONS + 1)
            for name, count in counts.items()
        }
    return {name: found[name] for name in statistics}


def _differing(a: Stratum, b: Stratum) -> NDArray[np.int64]:
    """The facts of a stratum on which any sum differs."""
    differ = [values != b.sums[name][q] for name, sums in a.sums.items() for q, values in sums.items()]
    return np.flatnonzero(np.any(differ, axis=0))


def _random_masks(units: Sequence[Stratum]) -> Iterator[list[NDArray[np.bool_]]]:
    """Which facts of each stratum to exchange: shape (exchanges, facts)."""
    streams = [_stream(unit.name) for unit in units]
    for size in _block_sizes(PERMUTATIONS, units):
        yield [one.random((size, unit.count)) < 0.5 for unit, one in zip(units, streams, strict=True)]


def _all_masks(
    units: Sequence[Stratum], differing: Sequence[NDArray[np.int64]]
) -> Iterator[list[NDArray[np.bool_]]]:
    """Every exchange of the differing facts once: exchange number n does what the bits of n say."""
    ends = np.cumsum([numbers.size for numbers in differing])
    first = 0
    for size in _block_sizes(2 ** int(ends[-1]), units):
        bits = np.arange(first, first + size)[:, None] >> np.arange(ends[-1]) & 1
        masks = [np.zeros((size, unit.count), dtype=bool) for unit in units]
        for mask, numbers, end in zip(masks, differing, ends, strict=True):
            mask[:, numbers] = bits[:, end - numbers.size : end]
        yield masks
        first += size


def compare(
    a: Samples,
    b: Samples,
    statistics: Mapping[str, Statistic],
    facts: Facts | None = None,
) -> dict[str, dict[str, Any]]:
    """Every metric of two models that answered the same probes, in the same order.

    Returns:
        {metric: {difference: of a minus b, low and high: of its paired bootstrap interval, p_value:
        two-sided, not corrected for other comparisons, probes and facts: how many the metric looks at}}.

    Raises ValueError: the two have other sets or lengths, or what `bootstrap` raises.
    """
    asked = [{(name, len(values)) for name in one for values in one[name].values()} for one in (a, b)]
    if odd := sorted(name for name, _ in asked[0] ^ asked[1]):
        raise ValueError(f"set {odd[0]} is of other probes: only answers to the same probes can be compared")
    # A model may lack a quantity of a set, of which `statistics` then has none.
    common = {name: a[name].keys() & b[name].keys() for name in a}
    a, b = ({name: {q: one[name][q] for q in common[name]} for name in common} for one in (a, b))
    drawn_a, drawn_b = (bootstrap(samples, statistics, facts) for samples in (a, b))
    p_values = permutation_test(a, b, statistics, facts)
    found = {}
    for name, statistic in statistics.items():
        difference = drawn_a[name] - drawn_b[name]
        low, high = interval_of(difference)
        found[name] = {
            "difference": float(difference[0]),
            "low": low,
            "high": high,
            "p_value": p_values[name],
            "probes": sum(len(next(iter(a[one].values()))) for one in sets_of(statistic, a)),
            "facts": fact_count(statistic, a, facts),
        }
    return found


def compare_all(
    models: Mapping[str, Samples],
    statistics: Mapping[str, Statistic],
    facts: Facts | None = None,
) -> list[dict[str, Any]]:
    """Every two of `models`, in their order, as records for comparisons.json.

    A record is {a, b, metric, difference, low, high, p_value, probes, facts, p_holm, unit, test}; `p_holm` is
    corrected for all records of the list. Raises ValueError as `compare`; the message names the two models.
    """
    records = []
    for a, b in tqdm(list(combinations(models, 2)), desc="compare", unit="pair", disable=None):
        try:
            found = compare(models[a], models[b], statistics, facts)
        except ValueError as error:
            raise ValueError(f"models {a} and {b}: {error}") from error
        records += [{"a": a, "b": b, "metric": name, **made} for name, made in found.items()]
    corrected = holm([record["p_value"] for record in records])
    return [
        {**record, "p_holm": p_holm, "unit": UNIT, "test": TEST}
        for record, p_holm in zip(records, corrected, strict=True)
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values, corrected for their number, in the given order (Holm 1979).

    Rejecting where the corrected one is at most alpha keeps the chance of any wrong rejection at most alpha,
    however the tests depend on each other.
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    stepped = np.maximum.accumulate(np.minimum(1.0, np.asarray(p_values, dtype=float)[order] * factors))
    corrected = np.empty(len(p_values))
    corrected[order] = stepped
    return [float(p_value) for p_value in corrected]
