"""How long intervals and comparisons of a large benchmark take: python -m benchmarks.interval_speed.

13,131 probes, as many as RWKU has, in 30 sets (ten targets, three modes) with two quantities each, and 30
metrics, of which ten look at all sets. Prints one JSON object: seconds of the intervals of one model and of
one comparison of two models, the same where every target's probes ask for 25 facts, unequally often, and the
resident memory that all together add at their peak, in MiB.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from recipe.rerule.evaluation.summary import (
    Facts,
    Samples,
    Statistic,
    compare,
    intervals,
    mean_of,
    mean_of_means,
)

PROBES = {"fb": 3268, "qa": 2879, "aa": 6984}
TARGETS = 10
QUANTITIES = ("recall", "refused")
FACTS = 25


def made_samples(seed: int) -> Samples:
    """Values of one model."""
    generator = np.random.default_rng(seed)
    sizes = {
        f"{mode}/{target}": count // TARGETS + (target < count % TARGETS)
        for mode, count in PROBES.items()
        for target in range(TARGETS)
    }
    return {
        name: {quantity: generator.random(size) for quantity in QUANTITIES} for name, size in sizes.items()
    }


def made_facts(samples: Samples) -> Facts:
    """What each probe asks for: some facts of its target far more often than others."""
    generator = np.random.default_rng(2)
    return {
        name: [
            (name.rpartition("/")[2], int(FACTS * place**2))
            for place in generator.random(len(values[QUANTITIES[0]]))
        ]
        for name, values in samples.items()
    }


def made_statistics(samples: Samples) -> dict[str, Statistic]:
    """Ten metrics over all sets, and ten over those of each of two modes."""
    names = list(samples)
    metrics: dict[str, Statistic] = {}
    for number in range(5):
        quantity = QUANTITIES[number % 2]
        metrics[f"pooled {number}"] = mean_of(quantity, names)
        metrics[f"unweighted {number}"] = mean_of_means(quantity, names)
    for mode in ("fb", "aa"):
        chosen = [name for name in names if name.startswith(mode)]
        metrics |= {f"{mode} {number}": mean_of(QUANTITIES[number % 2], chosen) for number in range(10)}
    return metrics


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    a, b = made_samples(0), made_samples(1)
    statistics, facts = made_statistics(a), made_facts(a)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = {
        "probes": sum(PROBES.values()),
        "metrics": len(statistics),
        "intervals_seconds": seconds(lambda: intervals(a, statistics)),
        "comparison_seconds": seconds(lambda: compare(a, b, statistics)),
        "intervals_of_facts_seconds": seconds(lambda: intervals(a, statistics, facts=facts)),
        "comparison_of_facts_seconds": seconds(lambda: compare(a, b, statistics, facts=facts)),
    }
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({**figures, "added_memory_mib": added / 1024}))


if __name__ == "__main__":
    main()
