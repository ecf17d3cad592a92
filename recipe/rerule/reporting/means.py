"""The mean of an evaluation over targets, each target weighing the same.

Probes of different targets are independent, so the half-widths of the targets' intervals add in squares. The
targets themselves count as fixed: the intervals say nothing about other targets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from recipe.rerule.evaluation.summary import Metrics, holm
from recipe.rerule.reporting.evaluations import Comparison, Evaluation, Intervals

_Z_95 = 1.959963984540054


def mean_over_targets(targets: Sequence[Evaluation]) -> Evaluation:
    """One evaluation with the mean of every metric that all targets have; of one target, that one itself."""
    if len(targets) == 1:
        return targets[0]
    return replace(
        targets[0],
        target=f"mean over {len(targets)} targets",
        folders=tuple(folder for target in targets for folder in target.folders),
        results=_mean_rows([target.results for target in targets]),
        anchors=_mean_rows([target.anchors for target in targets]),
        intervals=_mean_intervals(targets),
        comparisons=tuple(_mean_comparisons(targets)),
    )


def _mean_rows(rows: Sequence[Mapping[str, Metrics]]) -> dict[str, Metrics]:
    return {
        name: {
            metric: math.fsum(target[name][metric] for target in rows) / len(rows)
            for metric in metrics
            if _has_mean(metric) and all(metric in target[name] for target in rows)
        }
        for name, metrics in rows[0].items()
        if all(name in target for target in rows)
    }


def _mean_intervals(targets: Sequence[Evaluation]) -> Intervals:
    """Intervals of the means, each side of its own width, where every target has one."""
    rows = [target.results | target.anchors for target in targets]
    found: Intervals = {}
    for row, metrics in targets[0].intervals.items():
        for metric in filter(_has_mean, metrics):
            ends = [target.intervals.get(row, {}).get(metric) for target in targets]
            values = [target.get(row, {}).get(metric) for target in rows]
            if None in ends or None in values:
                continue
            center = math.fsum(values) / len(values)  # type: ignore[arg-type]
            below = _root_sum_squares([v - e[0] for v, e in zip(values, ends, strict=True)])  # type: ignore
            above = _root_sum_squares([e[1] - v for v, e in zip(values, ends, strict=True)])  # type: ignore
            count = len(targets)
            found.setdefault(row, {})[metric] = (center - below / count, center + above / count)
    return found


def _has_mean(metric: str) -> bool:
    """A number pooled over probes is no mean of the targets' own; `evaluate score` pools their records."""
    return "all_pooled" not in metric


def _root_sum_squares(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in values))


def _mean_comparisons(targets: Sequence[Evaluation]) -> list[Comparison]:
    """For each test that every target has: the mean difference, its normal interval and p-values."""
    by_key = [{(test.a, test.b, test.metric): test for test in target.comparisons} for target in targets]
    means = [
        _mean_comparison([tests[name] for tests in by_key])
        for name in by_key[0]
        if all(name in tests for tests in by_key)
    ]
    corrected = holm([test.p_value for test in means])
    return [test.model_copy(update={"p_holm": p_holm}) for test, p_holm in zip(means, corrected, strict=True)]


def _mean_comparison(tests: Sequence[Comparison]) -> Comparison:
    count = len(tests)
    difference = math.fsum(test.difference for test in tests) / count
    half_width = _root_sum_squares([(test.high - test.low) / 2 for test in tests]) / count
    counts = [test.facts for test in tests]
    return tests[0].model_copy(
        update={
            "difference": difference,
            "low": difference - half_width,
            "high": difference + half_width,
            "p_value": two_sided_p(difference, half_width / _Z_95),
            "probes": sum(test.probes for test in tests),
            # None where one is not known.
            "facts": None if None in counts else sum(filter(None, counts)),
            "test": f"normal approximation over {count} targets",
        }
    )


def two_sided_p(difference: float, standard_error: float) -> float:
    """P-value of a difference of 0 under a normal distribution; 1 where nothing differs at all."""
    if standard_error == 0:
        return 1.0 if difference == 0 else 0.0
    return math.erfc(abs(difference) / standard_error / math.sqrt(2))
