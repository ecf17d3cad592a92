"""Logs as open-unlearning writes them, with made values."""

from collections.abc import Iterable
from typing import Any

from tests.golden import evaluation_inputs


def metric(entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A metric of these samples; its aggregate is wrong, which nothing may take."""
    return {"agg_value": 0.123, "value_by_index": {str(i): entry for i, entry in enumerate(entries)}}


def tofu_log(seed: int, forget: int = 40) -> dict[str, Any]:
    """Base metrics of all four sets with so many questions to forget, without derived ones."""
    log = evaluation_inputs.tofu_log(seed, forget)
    del log["extraction_strength"]
    for name in log:
        entries = enumerate(log[name]["value_by_index"].values())
        log[name] = metric(entry | {"ground_truth": f"Answer {n}."} for n, entry in entries)
    return log
