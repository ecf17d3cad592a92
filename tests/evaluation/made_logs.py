"""Logs as open-unlearning writes them, with made values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"forget": 40, "retain": 30, "ra": 12, "wf": 11}
"""Samples by set; TOFU's own are 40 to 400, 400, 100 and 117."""


def write_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def probabilities(losses: np.ndarray) -> dict[str, Any]:
    """A metric of probabilities in float32; `losses` of shape (samples,) or (samples, answers)."""
    losses = losses.astype(np.float32)
    probs = np.exp(-losses)
    entries = {
        str(i): {"prob": prob.tolist(), "avg_loss": loss.tolist()}
        for i, (prob, loss) in enumerate(zip(probs, losses, strict=True))
    }
    return {"agg_value": float(np.mean(probs.astype(float))), "value_by_index": entries}


def rouge(scores: np.ndarray) -> dict[str, Any]:
    entries = {
        str(i): {"rouge1_recall": 1.0, "rougeL_f1": 0.5, "rougeL_recall": score, "generation": "x"}
        for i, score in enumerate(scores.tolist())
    }
    return {"agg_value": float(np.mean(scores)), "value_by_index": entries}


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
        log[f"{prefix}_Q_A_ROUGE"] = rouge(rng.random(size))
    return log
