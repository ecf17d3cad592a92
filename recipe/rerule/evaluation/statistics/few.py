"""Metrics over too few probes for an interval or a test (docs/statistics.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from recipe.rerule.evaluation.statistics.permutation import sets_of
from recipe.rerule.evaluation.statistics.samples import Samples, Statistic

LEAST_PROBES = 6
"""With n probes that differ, no p-value is below 2 ** (1 - n): with 5 none is below 0.05."""


def probe_count(statistic: Statistic, samples: Samples) -> int:
    """How many probes the statistic looks at."""
    return sum(len(next(iter(samples[name].values()))) for name in sets_of(statistic, samples))


def with_enough_probes(statistics: Mapping[str, Statistic], samples: Samples) -> dict[str, Statistic]:
    """The statistics that look at `LEAST_PROBES` or more."""
    return {name: one for name, one in statistics.items() if probe_count(one, samples) >= LEAST_PROBES}


def few_probes_warning(
    statistics: Mapping[str, Statistic], samples: Samples, shown: Iterable[str]
) -> str | None:
    """One line on those of the `shown` metrics that have too few probes; None where none has."""
    counts = {name: probe_count(statistics[name], samples) for name in shown if name in statistics}
    few = [f"{name} ({count})" for name, count in counts.items() if count < LEAST_PROBES]
    if not few:
        return None
    return (
        f"fewer than {LEAST_PROBES} probes, so no interval and no test: {', '.join(few)}; "
        "hold more questions out, or give a file of probes"
    )
