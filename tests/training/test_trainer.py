"""What both trainers do about checkpoints and validation, and V0's update; the rest is in tests/e2e."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu

from recipe.rerule.runs import checkpoints
from recipe.rerule.runs.save_clock import SaveClock
from recipe.rerule.training import trainer as module
from recipe.rerule.training.trainer import ReRULETrainer
from recipe.rerule.training.trainer_v1 import ReRULETrainerV1
from tests.test_update_actor import RUNS, batch_of, made_trainer


def bare(kind: type, **settings: Any) -> Any:
    """A trainer with these settings and nothing of verl's."""
    trainer = object.__new__(kind)
    trainer.config = OmegaConf.create(settings)
    return trainer


@pytest.mark.parametrize(
    ("minutes", "save_freq", "interim", "asked_for"),
    [
        (None, 1_000_000, [], [100]),
        (60, 1_000_000, [8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96], [100]),  # 450 s a step
        (60, 20, [8, 16, 28, 36, 48, 56, 68, 76, 88, 96], [20, 40, 60, 80, 100]),
        (60, 8, [], [*range(8, 101, 8), 100]),  # due where one is asked for
        (0.1, 1_000_000, [*range(1, 100)], [100]),
        (60, -1, [], []),
    ],
)
def test_checkpoints_by_time_come_between_those_asked_for(
    minutes: float | None, save_freq: int, interim: list[int], asked_for: list[int]
) -> None:
    """The loop does what verl's `fit` does about checkpoints, by its condition."""
    seconds, saved = 0.0, {True: list[int](), False: list[int]()}
    trainer = bare(ReRULETrainer, trainer={"save_freq": save_freq})
    trainer._save_freq, trainer.total_training_steps = save_freq, 100
    trainer._save_clock = SaveClock(minutes, now=lambda: seconds)
    trainer._save = lambda is_interim: saved[is_interim].append(trainer.global_steps)
    for step in range(1, 101):
        trainer.global_steps, seconds = step, seconds + 450
        trainer._save_this_step_if_due()
        frequency = trainer.config.trainer.save_freq
        if frequency > 0 and (step == 100 or step % frequency == 0):
            trainer._save_checkpoint()
    assert saved == {True: interim, False: asked_for}
    assert trainer.config.trainer.save_freq == save_freq


def test_the_best_step_by_validation_is_saved_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores by step; 12 is saved by `fit` before it is validated, 14 is validated before any step."""
    calls: list[str] = []
    folder = {"default_local_dir": str(tmp_path)}
    trainer = bare(ReRULETrainer, trainer=folder, save={"best": True, "minutes": None})
    trainer._save_freq, trainer._checkpoints_to_keep, trainer._last_update = 1_000_000, None, (None, None)
    trainer._save_clock = SaveClock(None)
    trainer.checkpoint_manager = SimpleNamespace(
        sleep_replicas=lambda: calls.append("sleep"),
        update_weights=lambda step: calls.append(f"weights of {step}"),
    )
    trainer.val_dataloader = []

    def save(interim: bool) -> None:
        (tmp_path / f"global_step_{trainer.global_steps}").mkdir()
        checkpoints.finish(tmp_path, trainer.global_steps, interim)
        calls.append(f"save {trainer.global_steps}")

    def validate(trainer: Any) -> dict[str, float]:
        score = scores[trainer.global_steps]
        shares = {"val-health/forget/refused": 1.0, "val-health/retain/right": 0.5}
        return shares if score is None else shares | {"val-health/score": score}

    scores = {0: 0.95, 2: 0.5, 4: 0.75, 6: 0.75, 8: 0.6, 10: None, 12: 0.9, 14: 0.99}
    trainer._save = save
    monkeypatch.setattr(RayPPOTrainer, "_validate", validate)
    kept = {}
    for step in scores:
        trainer.global_steps = step
        if step == 12:
            save(interim=False)
        if step == 14:
            trainer._last_update = None
        trainer._validate()
        kept[step] = sorted(path.name for path in tmp_path.glob("global_step_*"))
    by_validation = [("sleep", f"save {step}", f"weights of {step}") for step in (2, 4)]
    assert calls == [*by_validation[0], *by_validation[1], "save 12"]
    assert (kept[8], kept[14]) == (["global_step_4"], ["global_step_12"])
    assert checkpoints.best(tmp_path) == checkpoints.Best(12, 0.9, 1.0, 0.5)


@pytest.mark.parametrize(("kind", "verls"), [(ReRULETrainer, RayPPOTrainer), (ReRULETrainerV1, PPOTrainer)])
def test_the_sides_of_validation_rows_are_found_by_their_ids(
    kind: type, verls: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V0 keeps the ids of a batch, V1 puts its own into it; either repeats or reorders the rows."""
    rows = [{"ground_truth": {"type": side}} for side in ("forget", "retain")]
    trainer = bare(kind, save={"best": False})
    trainer.global_steps, trainer.val_dataloader = 3, [{"reward_model": rows}]

    def validate(trainer: Any) -> dict[str, float]:
        (batch,) = trainer.val_dataloader
        if verls is PPOTrainer:
            batch["uid"] = ["a", "b"]
        uids = [batch["uid"][place] for place in (1, 0, 1)]
        parts = {"refused": [0.0, 1.0, 1.0], "right": [1.0, 0.0, 0.0], "reward": [1.0, 1.0, 0.0]}
        return trainer._val_metrics_update(["rerule/x"] * 3, uids, parts, [])

    monkeypatch.setattr(verls, "_val_metrics_update", lambda *arguments: {"val-core/x": 1.0})
    monkeypatch.setattr(verls, "_validate", validate)
    assert trainer._validate() == {
        "val-core/x": 1.0,
        "val-health/forget/refused": 1.0,
        "val-health/retain/refused": 0.5,
        "val-health/retain/right": 0.5,
        "val-health/score": 0.75,
    }


def test_metrics_that_verl_has_collected_by_then_are_kept_with_the_updates_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "records").mkdir()
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "records" / "metrics.1.jsonl"))
    monkeypatch.setattr(RayPPOTrainer, "_balance_batch", lambda *arguments, **options: None)
    monkeypatch.setattr(module, "metrics_before_save", lambda *arguments: {"actor/pg_loss": 0.5})
    trainer = bare(ReRULETrainer)
    trainer.global_steps, trainer.use_critic, trainer._last_update = 6, False, (None, None)
    trainer.train_dataloader = range(5)
    metrics: dict[str, Any] = {}
    trainer._balance_batch(None, metrics=metrics)
    metrics["actor/entropy"] = 2.0  # verl adds it later in the step
    trainer._keep_metrics()
    place = {"training/global_step": 6.0, "training/epoch": 1.0}
    (line,) = (tmp_path / "records" / "metrics_at_save.1.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 6, "data": {"actor/entropy": 2.0, "actor/pg_loss": 0.5, **place}}


class RecordingWorkers:
    """Keeps what verl's own `_update_actor` sends, and answers as verl's workers do."""

    def __init__(self) -> None:
        self.sent: list[TensorDict] = []

    def update_actor(self, data: TensorDict) -> TensorDict:
        self.sent.append(data.clone())
        return tu.get_tensordict({}, non_tensor_dict={"metrics": {"pg_loss": [0.25, 0.75], "mfu": 0.0}})


def test_without_replay_the_workers_get_what_verls_own_trainer_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 1: verl's code on both sides, but for the data set's labels, which no worker reads."""
    (tmp_path / "records").mkdir()
    verls_update = RayPPOTrainer._update_actor
    trainer = made_trainer(tmp_path, RUNS["off"], RecordingWorkers(), monkeypatch)
    monkeypatch.setattr(RayPPOTrainer, "_update_actor", verls_update)
    actor = {
        **{"ppo_mini_batch_size": 4, "ppo_epochs": 1, "data_loader_seed": 3, "shuffle": False},
        **{"calculate_entropy": False, "entropy_coeff": 0.0},
    }
    settings = {"actor": actor, "rollout": {"multi_turn": {"enable": False}}}
    OmegaConf.update(trainer.config, "actor_rollout_ref", settings)
    trainer.global_steps = 1
    metrics = trainer._update_actor(batch_of(1)).meta_info["metrics"]
    verls_metrics = verls_update(trainer, batch_of(1)).meta_info["metrics"]
    ours, verls = trainer.actor_rollout_wg.sent
    assert set(verls.keys()) - set(ours.keys()) == {"uid", "reward_model", "extra_info", "refused"}
    for name in set(ours.keys()):
        one, other = ours.get(name), verls.get(name)
        if isinstance(one, torch.Tensor):
            assert torch.equal(*(x.values() if x.is_nested else x for x in (one, other))), name
        else:
            assert str(one.tolist()) == str(other.tolist()), name
    assert verls_metrics.items() <= metrics.items()
    assert not [name for name in metrics if name.startswith(("replay/updates", "replay/size"))]
