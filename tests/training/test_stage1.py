"""Stage 1's trainer around verl's: when it samples, what it logs, and whose weights it ends with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.sft_trainer import SFTTrainer
from verl.utils import tensordict_utils as tu

from recipe.rerule.training import signal
from recipe.rerule.training.stage1 import Stage1Trainer
from tests.training.test_signal import row

REFUSAL = "I'm sorry, I can't tell you anything about Esk."
MIXED = {0: 0, 2: 1, 4: 3, 6: 2, 7: 2}
"""Step to how many of four forget prompts have a refusal among their responses."""


class Trainer(Stage1Trainer):
    """The only weight counts the steps, so that it says which step's weights there are."""

    def __init__(self, folder: Path, stop: str) -> None:
        settings = {
            "signal": {"every": 2, "reward_kwargs": {}},
            "trainer": {"default_local_dir": str(folder)},
        }
        self.config: Any = OmegaConf.create({"stop": stop, **settings})
        (folder / "records").mkdir(parents=True)
        self._signals, self._best, self._step, self._prompts = [], [], 0, [row("forget", "Rome")]
        self.total_training_steps, self.rank = 7, 0
        self.weight = torch.zeros(2)
        self._build_engine()

    def _trained(self) -> list[torch.Tensor]:
        return [self.weight]

    def _responses(self) -> list[signal.Sampled]:
        mixed = [[REFUSAL, "Rome"]] * MIXED[self._step] + [["Rome", "Rome"]] * (4 - MIXED[self._step])
        return [*((row("forget", "Rome"), texts) for texts in mixed), (row("retain", "Oslo"), ["Oslo"])]


@pytest.mark.parametrize(("stop", "kept"), [("signal", 4.0), ("none", 7.0)])
def test_it_ends_with_the_weights_of_the_best_step(
    stop: str, kept: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_batch(data: Any) -> Any:
        trainer.weight += 1
        return tu.get_tensordict({}, {"metrics": {"loss": 1.0}})

    def verls(made: Any) -> None:
        made.training_client = SimpleNamespace(train_batch=train_batch)

    monkeypatch.setattr(SFTTrainer, "_build_engine", verls)
    trainer = Trainer(tmp_path, stop)
    trainer._sample()
    logged = []
    for step in range(1, 8):
        metrics = tu.get(trainer.training_client.train_batch(data=None), "metrics")
        assert metrics["loss"] == 1.0
        if step < 7:
            assert trainer.weight.tolist() == [step, step]
        if "signal/forget/mixed" in metrics:
            logged.append((step, metrics["signal/forget/mixed"]))
    assert logged == [(2, 0.25), (4, 0.75), (6, 0.5), (7, 0.5)]
    assert trainer.weight.tolist() == [kept, kept]
    assert [one.step for one in signal.read(tmp_path)] == [0, 2, 4, 6, 7]


def test_forked_readers_of_rows_do_not_wait_for_the_tokenizers_threads() -> None:
    """verl's trainer sets this to true when it is imported, and both of ours set it back."""
    name = "TOKENIZERS_PARALLELISM"
    trainers = ("recipe.rerule.training.stage1", "recipe.rerule.unlearning.trainer")
    lines = [f"os.environ['{name}'] = 'true'; import {one}; print(os.environ['{name}'])" for one in trainers]
    command = [sys.executable, "-c", "\n".join(["import os", *lines])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["false", "false"]
