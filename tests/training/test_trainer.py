"""What the trainer keeps of a step before verl logs it; the rest of it is tested on the real stack."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file
from tensordict import TensorDict
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.utils import tensordict_utils as tu

from recipe.rerule.runs import checkpoints, model_checks
from recipe.rerule.runs.save_clock import SaveClock
from recipe.rerule.training import trainer as module
from recipe.rerule.training.trainer import ReRULETrainer
from tests.runs.test_written_model import ALPHA, RANK, adapted_model, put_written, start
from tests.test_update_actor import RUNS, batch_of, made_trainer


def saving(minutes: float | None, save_freq: int = 1_000_000) -> tuple[Any, list[float], list[str]]:
    """A trainer of 100 steps that only saves; the seconds of its clock, and its calls for a checkpoint."""
    seconds, calls = [0.0], []
    trainer: Any = object.__new__(ReRULETrainer)
    trainer.config = OmegaConf.create({"trainer": {"save_freq": save_freq}})
    trainer._save_freq, trainer.total_training_steps = save_freq, 100
    trainer._save_clock = SaveClock(minutes, now=lambda: seconds[0])
    trainer._save = lambda interim: calls.append("interim" if interim else "asked for")
    return trainer, seconds, calls


def run_steps(trainer: Any, seconds: list[float], steps: int, seconds_a_step: float) -> list[int]:
    """What verl's `fit` does about checkpoints, by its condition; returns the steps that were saved."""
    saved = []
    for step in range(1, steps + 1):
        trainer.global_steps = step
        seconds[0] += seconds_a_step
        trainer._save_this_step_if_due()
        last, frequency = step >= trainer.total_training_steps, trainer.config.trainer.save_freq
        if frequency > 0 and (last or step % frequency == 0):
            saved.append(step)
            trainer._save_checkpoint()
    return saved


@pytest.mark.parametrize(
    ("minutes", "save_freq", "saved", "interim"),
    [
        (None, 1_000_000, [100], 0),
        (60, 1_000_000, [8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 100], 12),  # 450 s a step
        (60, 20, [8, 16, 20, 28, 36, 40, 48, 56, 60, 68, 76, 80, 88, 96, 100], 10),
        (60, 4, list(range(4, 101, 4)), 0),
        (0.1, 1_000_000, list(range(1, 101)), 99),
        (60, -1, [], 0),
    ],
)
def test_checkpoints_by_time_come_between_those_asked_for(
    minutes: float | None, save_freq: int, saved: list[int], interim: int
) -> None:
    trainer, seconds, calls = saving(minutes, save_freq)
    assert run_steps(trainer, seconds, 100, 450.0) == saved
    assert calls.count("interim") == interim
    assert calls[-1:] == (["asked for"] if saved else [])
    assert trainer.config.trainer.save_freq == save_freq


def test_verl_reads_save_freq_after_the_update_and_before_the_save() -> None:
    """The order that checkpoints by time rest on."""
    source = inspect.getsource(RayPPOTrainer.fit)
    order = [
        source.index(part)
        for part in ("self._update_actor(batch)", "self.config.trainer.save_freq", "self._save_checkpoint()")
    ]
    assert order == sorted(order)


class Engine:
    """Notes when the rollout engine sleeps and gets weights."""

    def __init__(self, calls: list[str]) -> None:
        self.sleep_replicas = lambda: calls.append("sleep")
        self.update_weights = lambda step: calls.append(f"weights of {step}")


def test_the_best_step_by_validation_is_saved_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores by step; 12 is saved by `fit` before it is validated, 14 is validated before any step."""
    calls: list[str] = []
    trainer: Any = object.__new__(ReRULETrainer)
    trainer.config = OmegaConf.create(
        {"trainer": {"default_local_dir": str(tmp_path)}, "save": {"best": True, "minutes": None}}
    )
    trainer._save_freq, trainer._checkpoints_to_keep, trainer._last_update = 1_000_000, None, (None, None)
    trainer._save_clock, trainer.checkpoint_manager = SaveClock(None), Engine(calls)
    trainer.val_dataloader = []

    def save(interim: bool) -> None:
        (tmp_path / f"global_step_{trainer.global_steps}").mkdir()
        checkpoints.finish(tmp_path, trainer.global_steps, interim)
        calls.append(f"save {trainer.global_steps}")

    trainer._save = save
    scores = {0: 0.95, 2: 0.5, 4: 0.75, 6: 0.75, 8: 0.6, 10: None, 12: 0.9, 14: 0.99}
    monkeypatch.setattr(
        RayPPOTrainer,
        "_validate",
        lambda trainer: {
            **({} if (score := scores[trainer.global_steps]) is None else {"val-health/score": score}),
            "val-health/forget/refused": 1.0,
            "val-health/retain/right": 0.5,
        },
    )
    kept = {}
    for step in scores:
        trainer.global_steps = step
        if step == 12:
            save(interim=False)
        if step == 14:
            trainer._last_update = None
        trainer._validate()
        kept[step] = sorted(path.name for path in tmp_path.glob("global_step_*"))
    assert calls == [
        *("sleep", "save 2", "weights of 2", "sleep", "save 4", "weights of 4", "save 12"),
    ]
    assert kept[8] == ["global_step_4"]
    assert kept[14] == ["global_step_12"]
    assert checkpoints.best(tmp_path) == checkpoints.Best(12, 0.9, 1.0, 0.5)


def test_the_sides_of_validation_rows_are_found_by_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """V0 keeps the ids of a batch, V1 puts its own into it; either repeats or reorders the rows."""
    rows = [{"ground_truth": {"type": side}} for side in ("forget", "retain")]
    trainer: Any = object.__new__(ReRULETrainer)
    trainer.config = OmegaConf.create({"save": {"best": False}})
    trainer.global_steps, trainer.val_dataloader = 3, [{"reward_model": rows}]

    def validate(trainer: Any, own_ids: bool) -> dict[str, float]:
        (batch,) = trainer.val_dataloader
        if own_ids:
            batch["uid"] = ["a", "b"]
        uids = [batch["uid"][place] for place in (1, 0, 1)]
        parts = {"refused": [0.0, 1.0, 1.0], "right": [1.0, 0.0, 0.0], "reward": [1.0, 1.0, 0.0]}
        return trainer._val_metrics_update(["rerule/x"] * 3, uids, parts, [])

    monkeypatch.setattr(RayPPOTrainer, "_val_metrics_update", lambda *arguments: {"val-core/x": 1.0})
    monkeypatch.setattr(RayPPOTrainer, "_validate", validate)
    for own_ids in (False, True):
        metrics = trainer._validate(own_ids)
        assert metrics["val-core/x"] == 1.0
        assert metrics["val-health/forget/refused"] == 1.0
        assert metrics["val-health/retain/refused"] == 0.5
        assert metrics["val-health/score"] == 0.75
        assert trainer.val_dataloader == [{"reward_model": rows, "uid": trainer._asked[0]["uid"]}]


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


def test_a_checkpoint_of_an_adapter_holds_a_whole_model_and_the_adapter(tmp_path: Path) -> None:
    """As verl leaves it: the actor's folder with the adapter apart under peft's names, no critic."""
    put_written(adapted_model(start(tmp_path / "model")), tmp_path / "step" / "actor" / "huggingface")
    model = {"path": str(tmp_path / "model"), "lora_rank": RANK, "lora_alpha": ALPHA}
    config = {
        "actor_rollout_ref": {"model": model},
        "critic": {"model": {"path": str(tmp_path / "model")}},
        "save": {"weights_dtype": "bfloat16"},
    }
    trainer: Any = object.__new__(ReRULETrainer)
    trainer.config = OmegaConf.create(config)
    trainer._settle_weights(tmp_path / "step")
    actor = tmp_path / "step" / "actor"
    assert model_checks.problem(actor / "huggingface") is None
    whole = load_file(actor / "huggingface" / "model.safetensors")
    assert {value.dtype for value in whole.values()} == {torch.bfloat16}
    parts = load_file(actor / "lora_adapter" / "adapter_model.safetensors")
    assert {value.dtype for value in parts.values()} == {torch.float32}


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
    settings = {
        "rollout.multi_turn": {"enable": False},
        "actor": {"ppo_mini_batch_size": 4, "ppo_epochs": 1, "data_loader_seed": 3, "shuffle": False}
        | {"calculate_entropy": False, "entropy_coeff": 0.0},
    }
    for place, values in settings.items():
        OmegaConf.update(trainer.config, f"actor_rollout_ref.{place}", values)
    trainer.global_steps = 1
    metrics = trainer._update_actor(batch_of(1)).meta_info["metrics"]
    verls_metrics = verls_update(trainer, batch_of(1)).meta_info["metrics"]
    ours, verls = trainer.actor_rollout_wg.sent
    labels = {"uid", "reward_model", "extra_info", "refused"}
    assert set(verls.keys()) - set(ours.keys()) == labels
    assert set(ours.keys()) <= set(verls.keys())
    for name in set(ours.keys()):
        one, other = ours.get(name), verls.get(name)
        if isinstance(one, torch.Tensor):
            assert torch.equal(*(x.values() if x.is_nested else x for x in (one, other))), name
        else:
            assert str(one.tolist()) == str(other.tolist()), name
    assert verls_metrics.items() <= metrics.items()
    assert not [name for name in metrics if name.startswith(("replay/updates", "replay/size"))]
