"""ReRULE on V1 against ReRULE on V0, given the same recorded batches; tests/e2e has the real stack."""

from __future__ import annotations

import copy
import functools
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transfer_queue
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from recipe.rerule.replay import ReplayConfig
from recipe.rerule.training.trainer_v1 import ReRULETrainerV1
from recipe.rerule.training.worker import STAY_LOADED
from tests.made_runs import trainer_settings
from tests.test_update_actor import RUNS, STEPS, Tokenizer, Workers, batch_of, made_trainer
from tests.training.queued import Queue


class KeepingWorkers(Workers):
    """Keeps a copy of what each replay update gets."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[TensorDict] = []

    def update_actor_replay(self, data: TensorDict) -> TensorDict:
        self.sent.append(data.clone())
        return super().update_actor_replay(data)

    def _query_dispatch_info(self, mesh: str) -> list[int]:
        assert mesh == "actor"
        return [0, 1]

    def on_policy_v1(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        marks = [STAY_LOADED] * bool(batch.extra_info.get(STAY_LOADED))
        self.calls.append(["on-policy", marks])
        number = float(len(self.calls))
        metrics.update({"actor/pg_loss": number, "actor/grad_norm": number + 0.5})
        return batch


def trainer_v1(folder: Path, settings: dict[str, Any], workers: KeepingWorkers, monkeypatch: Any) -> Any:
    """ReRULE's trainer around no more of verl's V1 than its settings."""
    config = trainer_settings(folder)

    class Sampler:
        poll_interval = 2.0

    def start(trainer: Any, config: Any) -> None:
        trainer.config, trainer.tokenizer, trainer.replay_buffer = config, Tokenizer(), Sampler()
        trainer.total_training_steps, trainer.actor_rollout_wg = STEPS, workers

    monkeypatch.setattr(PPOTrainerSync, "__init__", start)
    monkeypatch.setattr(PPOTrainerSync, "on_init_end", lambda trainer: None)
    monkeypatch.setattr(
        PPOTrainerSync,
        "_update_actor",
        lambda trainer, batch, metrics: workers.on_policy_v1(batch, metrics),
        raising=False,
    )
    trainer = ReRULETrainerV1(config=config, replay_config=ReplayConfig(**settings))
    trainer.on_init_end()
    return trainer


def run_v0(folder: Path, settings: dict[str, Any], monkeypatch: Any) -> tuple[Any, KeepingWorkers]:
    (folder / "records").mkdir(parents=True)
    workers = KeepingWorkers()
    trainer = made_trainer(folder, settings, workers, monkeypatch)
    for step in range(1, STEPS + 1):
        trainer.global_steps = step
        trainer._update_actor(batch_of(step))
    return trainer, workers


def run_v1(folder: Path, settings: dict[str, Any], monkeypatch: Any) -> tuple[Any, KeepingWorkers]:
    (folder / "records").mkdir(parents=True)
    workers = KeepingWorkers()
    trainer = trainer_v1(folder, settings, workers, monkeypatch)
    trainer.logged = []
    for step in range(1, STEPS + 1):
        queue = Queue(batch_of(step), seed=step)
        monkeypatch.setattr(transfer_queue, "kv_batch_get", queue.get)
        trainer.global_steps, trainer._submitted = step, queue.submitted
        before = dict(queue.meta.extra_info)
        trainer.logged.append({})
        trainer._update_actor(queue.meta, metrics=trainer.logged[-1])
        assert queue.meta.extra_info == before
    return trainer, workers


@pytest.fixture(params=list(RUNS))
def both(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[tuple[Any, KeepingWorkers], tuple[Any, KeepingWorkers], Path]:
    settings = RUNS[request.param]
    v0, v1 = tmp_path / "v0", tmp_path / "v1"
    return run_v0(v0, settings, monkeypatch), run_v1(v1, settings, monkeypatch), tmp_path


def test_the_same_batches_give_the_same_buffer_draws_data_for_the_worker_and_metrics(both: Any) -> None:
    (v0, workers0), (v1, workers1), folder = both
    assert [call[:2] for call in workers1.calls] == [call[:2] for call in workers0.calls]
    assert len(workers1.sent) == len(workers0.sent)
    for ours, expected in zip(workers1.sent, workers0.sent, strict=True):
        assert set(ours.keys()) == set(expected.keys())
        for name in expected.keys():  # noqa: SIM118  (a TensorDict iterates over rows)
            assert same(ours.get(name), expected.get(name)), name
    if v0.replay is not None:
        assert_same_state(v1.replay.state_dict(), v0.replay.state_dict())
    for name in ("prompts.jsonl", "replay.jsonl", "rollouts/1.jsonl", f"rollouts/{STEPS}.jsonl"):
        paths = [folder / run / "records" / name for run in ("v0", "v1")]
        assert paths[0].exists() == paths[1].exists()
        if paths[0].exists():
            assert paths[1].read_text() == paths[0].read_text(), name
    v0_metrics, last = v0._last_update[1].meta_info["metrics"], v1.logged[-1]
    timed = {name for name in v0_metrics if "seconds" in name}
    assert set(last) == set(v0_metrics) | {"replay/short_groups"}
    for name in set(v0_metrics) - timed - {"actor/pg_loss", "actor/grad_norm"}:
        assert last[name] == v0_metrics[name], name
    assert all(isinstance(value, float) for value in last.values())


def assert_same_state(found: dict[str, Any], expected: dict[str, Any]) -> None:
    groups = [[stored.group() for stored in state.pop("groups")] for state in (found, expected)]
    assert found == expected
    assert len(groups[0]) == len(groups[1])
    for one, other in zip(*groups, strict=True):
        assert (one.prompt_index, one.step) == (other.prompt_index, other.step)
        for name, plane in other.planes().items():
            assert torch.equal(one.planes()[name], plane), name


def same(one: Any, other: Any) -> bool:
    if not isinstance(other, torch.Tensor):
        return str(one.tolist() if hasattr(one, "tolist") else one) == str(
            other.tolist() if hasattr(other, "tolist") else other
        )
    if other.is_nested:
        return torch.equal(one.values(), other.values()) and torch.equal(one.offsets(), other.offsets())
    return one.dtype == other.dtype and torch.equal(one, other)


def test_a_step_without_a_whole_group_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "records").mkdir()
    trainer = trainer_v1(tmp_path, RUNS["replay"], KeepingWorkers(), monkeypatch)
    queue = Queue(batch_of(1))
    queue.without(*[f"{uid}_0_0" for uid in queue.submitted])
    monkeypatch.setattr(transfer_queue, "kv_batch_get", queue.get)
    trainer.global_steps, trainer._submitted = 1, queue.submitted
    metrics: dict[str, Any] = {}
    trainer._update_actor(queue.meta, metrics=metrics)
    assert metrics["replay/short_groups"] == len(queue.submitted)
    assert metrics["replay/size"] == 0
    assert json.loads((tmp_path / "records" / "prompts.jsonl").read_text()) == {"step": 1, "prompts": []}
    printed = capsys.readouterr()
    assert f"step 1/{STEPS}" in printed.out
    assert f"warning: step 1: {len(queue.submitted)} prompts" in printed.err


def test_prompts_are_numbered_as_they_are_submitted_and_anew_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_v1(tmp_path, RUNS["off"], KeepingWorkers(), monkeypatch)
    monkeypatch.setattr(PPOTrainer, "_submit_batch_to_rollout", lambda trainer, batch: len(batch["uid"]))
    for uids in (["b", "c"], ["a"]):
        assert trainer._submit_batch_to_rollout({"uid": uids}) == len(uids)
    assert trainer._submitted == {"b": 0, "c": 1, "a": 2}
    trainer.on_step_begin()
    trainer._submit_batch_to_rollout({"uid": ["d"]})
    assert trainer._submitted == {"d": 0}


def test_verl_submits_through_the_numbering_method_and_saves_between_step_and_weights() -> None:
    """What numbering, checkpoints by time and the rollout engine's weights rest on."""
    for method in (PPOTrainer._add_batch_to_generate, PPOTrainer._add_prompts_to_generate):
        assert "self._submit_batch_to_rollout(batch)" in inspect.getsource(inspect.unwrap(method))
    source = inspect.getsource(PPOTrainer.fit)
    parts = (
        "on_step_begin()",
        "step(metrics",
        "config.trainer.save_freq > 0",
        "_save_checkpoint()",
        "on_step_end()",
    )
    order = [source.index(f"self.{part}") for part in parts]
    assert order == sorted(order)


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
    (tmp_path / "records").mkdir()
    verls_update = PPOTrainerSync._update_actor
    trainer = trainer_v1(tmp_path, RUNS["off"], KeepingWorkers(), monkeypatch)
    monkeypatch.setattr(PPOTrainerSync, "_update_actor", verls_update)
    actor = {
        **{"ppo_mini_batch_size": 8, "ppo_epochs": 1, "data_loader_seed": 3, "shuffle": False},
        **{"calculate_entropy": False, "entropy_coeff": 0.0},
    }
    OmegaConf.update(trainer.config, "actor_rollout_ref.actor", actor)
    sent, metrics = [], []
    for update in (trainer._update_actor, functools.partial(verls_update, trainer)):
        queue = Queue(batch_of(1))
        monkeypatch.setattr(transfer_queue, "kv_batch_get", queue.get)
        trainer.global_steps, trainer._submitted = 1, queue.submitted
        trainer.actor_rollout_wg = RecordingWorkers()
        metrics.append({})
        assert update(queue.meta, metrics=metrics[-1]) is queue.meta
        sent.append(trainer.actor_rollout_wg.calls)
    assert sent[0] == sent[1]
    assert len(sent[0]) == 1
    assert metrics[1].items() <= metrics[0].items()
    assert not [name for name in metrics[0] if name.startswith(("replay/updates", "replay/size"))]
