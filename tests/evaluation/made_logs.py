"""Logs as open-unlearning writes them, with made values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"forget": 40, "retain": 30, "ra": 12, "wf": 11}
"""Samples by set; TOFU's own are 40 to 400, 400, 100 and 117."""


def write_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def metric(entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A metric of these samples; its aggregate is wrong, which nothing may take."""
    return {"agg_value": 0.123, "value_by_index": {str(i): entry for i, entry in enumerate(entries)}}


def probabilities(losses: np.ndarray) -> dict[str, Any]:
    """A metric of probabilities; `losses` of shape (samples,) or (samples, answers)."""
    pairs = zip(losses.tolist(), np.exp(-losses).tolist(), strict=True)
    return metric({"prob": prob, "avg_loss": loss} for loss, prob in pairs)


def tofu_log(seed: int = 0, sizes: dict[str, int] | None = None) -> dict[str, Any]:
    """Base metrics of all four sets, without derived ones."""
    rng = np.random.default_rng(seed)
    log: dict[str, Any] = {}
    for prefix, size in (sizes or SIZES).items():
        options = prefix in ("ra", "wf")
        log[f"{prefix}_Q_A_Prob"] = probabilities(rng.gamma(2, 0.5, size))
        log[f"{prefix}_Q_A_PERT_Prob"] = probabilities(rng.gamma(4, 0.7, (size, 3 if options else 5)))
        if not options:
            log[f"{prefix}_Q_A_PARA_Prob"] = probabilities(rng.gamma(3, 0.6, size))
        scores = enumerate(rng.random(size).tolist())
        rouge = ({"rougeL_recall": score, "ground_truth": f"Answer {i}."} for i, score in scores)
        log[f"{prefix}_Q_A_ROUGE"] = metric(rouge)
    return log
