"""The numbers of rows and of logs, as `evaluate model` and `evaluate score` compute them."""

from collections.abc import Iterable
from typing import Any

from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.logs import Log, Scored, compute
from recipe.rerule.evaluation.registry import Benchmark, Row
from recipe.rerule.evaluation.summary import Metrics, metrics, samples_of


def measured(benchmark: Benchmark, rows: Iterable[Row]) -> Metrics:
    """The metrics of one model."""
    named = tidy.with_facts(list(rows), benchmark.fact)
    samples, _ = samples_of(tidy.from_rows({"model": "m", **row} for row in named), benchmark.sets)
    return metrics(samples, benchmark.statistics(samples))


def scored(benchmark: Benchmark, log: dict[str, Any], retain: dict[str, Any] | None = None) -> Scored:
    """A log "a", against the log "b" of a retained model."""
    ours, theirs = Log("a", log), None if retain is None else Log("b", retain)
    return compute(benchmark.log_computations(ours, theirs), ours, theirs)


def row(probe: int, place: str, rouge_l: float = 0.0, refused: bool = False, **more: Any) -> Row:
    """A row; `place` is "side/kind" or "side/kind/family"."""
    side, kind, *family = place.split("/", 2)
    fields = {"probe": probe, "side": side, "kind": kind, "family": (family or ["direct"])[0]}
    return {**fields, "sample": 0, "rouge_l": rouge_l, "refused": refused, **more}
