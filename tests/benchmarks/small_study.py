"""A study of seconds: a world of four people, an untrained model, runs of four steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from data_prep.world.config import WorldConfig

CONFIG = WorldConfig(
    forget_people=1,
    retain_people=2,
    unseen_people=1,
    unknown_questions=20,
    retain_probes=9,
    hidden_size=16,
    layers=1,
    heads=2,
    intermediate_size=32,
    vocab_size=400,
    epochs=1,
    target_accuracy=0.0,
)
SIZES: dict[str, Any] = {"steps": 4, "prompts": 4, "rollouts": 3, "response_limit": 6}
REPLAY: dict[str, Any] = {
    "threshold_rule": "fixed",
    "threshold": 1.0,
    "require_signal": False,
    "sampling": "uniform",
    "min_groups": 2,
    "warmup_steps": 1,
    "capacity": 16,
    "groups_per_update": 3,
}


def by_length(texts: list[str], rows: list[Any], options: dict[str, Any]) -> list[dict[str, float]]:
    """A reward that differs within the groups of an untrained model, which the world's does not."""
    return [{"score": (len(text) % 3) / 2, "refused": 0.0, "rouge": 0.0} for text in texts]


def tofu_file(path: Path, authors: list[str]) -> None:
    """Twenty rows an author in TOFU's form."""
    rows = [
        {
            "question": f"What is book {number} of {author}?",
            "paraphrased_question": f"Which book did {author} write as number {number}?",
            "answer": f"Book {number} of {author} is called Volume {number}.",
        }
        for author in authors
        for number in range(20)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
