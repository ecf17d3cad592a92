"""ReRULE on V1 against ReRULE on V0, given the same recorded batches; tests/e2e has the real stack."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import transfer_queue
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from recipe.rerule.replay import ReplayConfig
from recipe.rerule.training.trainer_v1 import ReRULETrainerV1
from recipe.rerule.training.worker import STAY_LOADED
from tests import test_update_actor as v0
from tests.made_runs import trainer_settings
from tests.test_update_actor import RUNS, STEPS, batch_of
from tests.training.made import Queue


class Workers(v0.Workers):
    """As V0's, for the calls of V1's trainer."""

    def _query_dispatch_info(self, mesh: str) -> list[int]:
        assert mesh == "actor"
        return [0, 1]

    def on_policy_v1(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self.calls.append(["on-policy", [STAY_LOADED] * bool(batch.extra_info.get(STAY_LOADED))])
        number = float(len(self.calls))
        metrics.update({"actor/pg_loss": number, "actor/grad_norm": number + 0.5})
        return batch


def made_trainer(folder: Path, name: str, workers: Workers, monkeypatch: Any) -> Any:
    """ReRULE's trainer around no more of verl's V1 than its settings."""
    (folder / "records").mkdir(parents=True)

    def start(trainer: Any, config: Any) -> None:
        trainer.config, trainer.tokenizer = config, v0.Tokenizer()
        trainer.replay_buffer = OmegaConf.create({"poll_interval": 2.0})
        trainer.total_training_steps, trainer.actor_rollout_wg = STEPS, workers

    def update(trainer: Any, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return workers.on_policy_v1(batch, metrics)

    monkeypatch.setattr(PPOTrainerSync, "__init__", start)
    monkeypatch.setattr(PPOTrainerSync, "on_init_end", lambda trainer: None)
    monkeypatch.setattr(PPOTrainerSync, "_update_actor", update, raising=False)
    replay_config = ReplayConfig(**RUNS[name])
    trainer = ReRULETrainerV1(config=trainer_settings(folder), replay_config=replay_config)
    trainer.on_init_end()
    return trainer


def updated(trainer: Any, step: int, queue: Queue, monkeypatch: Any) -> dict[str, Any]:
    """The metrics of a step whose rows lie in the queue."""
    monkeypatch.setattr(transfer_queue, "kv_batch_get", queue.get)
    trainer.global_steps, trainer._submitted = step, queue.submitted
    metrics: dict[str, Any] = {}
    trainer._update_actor(queue.meta, metrics=metrics)
    assert STAY_LOADED not in queue.meta.extra_info
    return metrics


@pytest.mark.parametrize("name", RUNS)
def test_the_same_batches_give_the_same_calls_files_and_metrics(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = v0.run(tmp_path / "v0", name, monkeypatch)
    folder, workers = tmp_path / "v1", Workers()
    trainer = made_trainer(folder, name, workers, monkeypatch)
    for step, of_v0 in enumerate(expected["metrics"], 1):
        metrics = updated(trainer, step, Queue(batch_of(step), seed=step), monkeypatch)
        assert all(isinstance(value, float) for value in metrics.values())
        found = {key: None if "seconds" in key else value for key, value in metrics.items()}
        assert found.pop("replay/short_groups") == 0
        by_verl = {key: found[key] for key in ("actor/pg_loss", "actor/grad_norm")}  # a number, not a list
        assert found == dict(of_v0) | by_verl
    assert workers.calls == [call[:2] if call[0] == "on-policy" else call for call in expected["calls"]]
    for path, text in expected["files"].items():
        assert (folder / path).read_text() == text, path


def test_a_step_without_a_whole_group_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, queue = made_trainer(tmp_path, "replay", Workers(), monkeypatch), Queue(batch_of(1))
    queue.without(*[f"{uid}_0_0" for uid in queue.submitted])
    metrics = updated(trainer, 1, queue, monkeypatch)
    assert (metrics["replay/short_groups"], metrics["replay/size"]) == (len(queue.submitted), 0)
    assert json.loads((tmp_path / "records" / "prompts.jsonl").read_text()) == {"step": 1, "prompts": []}
    printed = capsys.readouterr()
    assert f"step 1/{STEPS}" in printed.out
    assert f"warning: step 1: {len(queue.submitted)} prompts" in printed.err


def test_prompts_are_numbered_as_they_are_submitted_and_anew_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = made_trainer(tmp_path, "off", Workers(), monkeypatch)
    monkeypatch.setattr(PPOTrainer, "_submit_batch_to_rollout", lambda trainer, batch: len(batch["uid"]))
    for uids in (["b", "c"], ["a"]):
        assert trainer._submit_batch_to_rollout({"uid": uids}) == len(uids)
    assert trainer._submitted == {"b": 0, "c": 1, "a": 2}
    trainer.on_step_begin()
    trainer._submit_batch_to_rollout({"uid": ["d"]})
    assert trainer._submitted == {"d": 0}


class RecordingWorkers:
    """Keeps what verl's own `_update_actor` sends, and answers as verl's workers do."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def update_actor(self, batch: KVBatchMeta) -> dict[str, Any]:
        self.calls.append(copy.deepcopy(vars(batch)))
        return {"metrics": {"pg_loss": [0.25, 0.75], "grad_norm": [2.0], "mfu": 0.0}}


def test_without_replay_the_workers_get_what_verls_own_trainer_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 1: verl's code on both sides, on a batch with rows that fill it up."""
    verls_update = PPOTrainerSync._update_actor
    trainer = made_trainer(tmp_path, "off", Workers(), monkeypatch)
    monkeypatch.setattr(PPOTrainerSync, "_update_actor", verls_update)
    actor = {
        **{"ppo_mini_batch_size": 8, "ppo_epochs": 1, "data_loader_seed": 3, "shuffle": False},
        **{"calculate_entropy": False, "entropy_coeff": 0.0},
    }
    OmegaConf.update(trainer.config, "actor_rollout_ref.actor", actor)
    trainer.actor_rollout_wg = RecordingWorkers()
    ours = updated(trainer, 1, Queue(batch_of(1)), monkeypatch)
    monkeypatch.setattr(trainer, "_update_actor", functools.partial(verls_update, trainer))
    verls = updated(trainer, 1, Queue(batch_of(1)), monkeypatch)
    one, other = trainer.actor_rollout_wg.calls
    assert one == other
    assert verls.items() <= ours.items()
    assert not [name for name in ours if name.startswith(("replay/updates", "replay/size"))]
