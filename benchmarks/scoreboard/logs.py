"""Models whose answers others have logged, as rows of their own table: open-unlearning's TOFU_EVAL.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from recipe.rerule.evaluation.benchmarks.tofu.score import score
from recipe.rerule.evaluation.logs.open_unlearning import read_log
from recipe.rerule.reporting.document import Heading, Row, Table, number_cell

COLUMNS = {
    "forget_Q_A_ROUGE": Heading("ROUGE-L recall", "forget", "low"),
    "retain_Q_A_ROUGE": Heading("ROUGE-L recall", "retain", "high"),
    "forget_Q_A_Prob": Heading("probability", "forget", "low"),
    "extraction_strength": Heading("extraction strength", "forget", "low"),
    "exact_memorization": Heading("exact memorisation", "forget", "low"),
    "forget_truth_ratio": Heading("truth ratio", "forget", "zero"),
    "model_utility": Heading("model utility", "", "high"),
}
"""Metrics of open-unlearning. What a log does not have stays empty."""


def log_table(logs: Mapping[str, Path]) -> Table:
    """A row a log; every number is computed from the log's single samples.

    Raises:
        ValueError: a file is no such log.
        OSError: a file cannot be read.
    """
    return Table(
        "from_logs",
        "From logs",
        "model",
        tuple(COLUMNS.values()),
        tuple(_row(name, path) for name, path in logs.items()),
        "TOFU, from logs of open-unlearning's format. The questions and models are not those of the other "
        "tables, so compare numbers within this table only.",
    )


def _row(name: str, path: Path) -> Row:
    found = score(read_log(path)).metrics
    return Row(name, tuple(number_cell(found.get(metric), ".3f") for metric in COLUMNS), "published")
