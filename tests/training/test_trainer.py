"""What the trainer keeps of a step before verl logs it; the rest of it is tested on the real stack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

from recipe.rerule.training import trainer as module
from recipe.rerule.training.trainer import ReRULETrainer


def test_metrics_that_verl_has_collected_by_then_are_kept_with_the_updates_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "records").mkdir()
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "records" / "metrics.1.jsonl"))
    monkeypatch.setattr(RayPPOTrainer, "_balance_batch", lambda *arguments, **options: None)
    monkeypatch.setattr(module, "metrics_before_save", lambda *arguments: {"actor/pg_loss": 0.5})
    trainer: Any = object.__new__(ReRULETrainer)
    trainer.global_steps, trainer.use_critic, trainer._last_update = 6, False, (None, None)
    trainer.train_dataloader = range(5)
    metrics: dict[str, Any] = {}
    trainer._balance_batch(None, metrics=metrics)
    metrics["actor/entropy"] = 2.0  # verl adds it later in the step
    trainer._keep_metrics()
    (line,) = (tmp_path / "records" / "metrics_at_save.1.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "step": 6,
        "data": {
            "actor/entropy": 2.0,
            "actor/pg_loss": 0.5,
            "training/global_step": 6.0,
            "training/epoch": 1.0,
        },
    }
