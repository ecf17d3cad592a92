"""What `evaluate score` needs of a benchmark: who reads a file of single samples, and gives its metrics.

Benchmarks whose files have one form share one scorer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from recipe.rerule.evaluation.logs.metrics import Scored
from recipe.rerule.evaluation.logs.open_unlearning import Log
from recipe.rerule.evaluation.statistics.samples import Samples, Statistic

Record = dict[str, Any]

OPTIONS = ("retain_log", "variants", "allow_unequal", "model")
"""The options of `evaluate score` that a scorer may have no use for."""


class RecordMetrics(Protocol):
    """Reads answers one by one, and has metrics of them; a module can be one."""

    LEGEND: str

    def read_records(self, *paths: Path) -> list[Record]:
        """The records of the files, scored. Raises ValueError naming a bad one."""

    def samples(self, records: Sequence[Record]) -> Samples:
        """Their scores as arrays. Raises ValueError where two are of one probe."""

    def statistics(self, samples: Samples) -> Mapping[str, Statistic]:
        """The metrics that the scores allow."""


@dataclass(frozen=True)
class Mark:
    """What tells the records of one benchmark from those of the others.

    Attributes:
        found: whether a record has it.
        present: words for a record that has it.
        absent: words for records that lack it.
    """

    found: Callable[[Mapping[str, Any]], bool]
    present: str
    absent: str


@dataclass(frozen=True)
class RecordScorer:
    """Scores answers one by one, as responses.jsonl has them.

    Attributes:
        name: what messages say to give as --benchmark.
        title: the benchmark's name in messages.
        load: gives the metrics; called once they are needed, so that the command starts fast.
        mark: None where the records have none.
    """

    name: str
    title: str
    load: Callable[[], RecordMetrics]
    mark: Mark | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """Those of OPTIONS that it uses."""
        return ("model",)


@dataclass(frozen=True)
class LogScorer:
    """Scores a log of all metrics of one model, in open-unlearning's form.

    Attributes:
        name: what messages say to give as --benchmark.
        title: the benchmark's name in messages.
        holds: whether a JSON object is such a log.
        score: (log, retained model's log or None, wanted metrics or None for all, the command's options).
            Raises LogError.
        options: those of OPTIONS that it uses.
    """

    name: str
    title: str
    holds: Callable[[Mapping[str, Any]], bool]
    score: Callable[[Log, Log | None, Sequence[str] | None, argparse.Namespace], Scored]
    options: tuple[str, ...] = ("retain_log", "variants")


Scorer = RecordScorer | LogScorer
