"""What both trainers do about checkpoints and validation, and their updates.

ReRULE on V1 is held against ReRULE on V0, given the same recorded batches; tests/e2e has the real stack.
"""

import contextlib
import copy
import functools
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import transfer_queue
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu

from recipe.rerule.replay import ReplayConfig
from recipe.rerule.runs import checkpoints
from recipe.rerule.training.saved_run import run_identity
from recipe.rerule.training.trainer import ReRULETrainer
from recipe.rerule.training.trainer_v1 import ReRULETrainerV1
from recipe.rerule.training.worker import STAY_LOADED
from tests import test_update_actor as v0
from tests.made_runs import trainer_settings
from tests.test_update_actor import RUNS, STEPS, batch_of
from tests.training.made import Queue


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
    minutes: float | None,
    save_freq: int,
    interim: list[int],
    asked_for: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop does what verl's `fit` does about checkpoints, by its condition."""
    seconds, saved = 0.0, {True: list[int](), False: list[int]()}
    monkeypatch.setattr("recipe.rerule.training.saved_run.time", SimpleNamespace(monotonic=lambda: seconds))
    trainer = bare(ReRULETrainer, trainer={"save_freq": save_freq}, save={"minutes": minutes})
    trainer._save_freq, trainer.total_training_steps, trainer._saved_at = save_freq, 100, 0.0
    trainer._save = lambda is_interim: saved[is_interim].append(trainer.global_steps)
    for step in range(1, 101):
        trainer.global_steps, seconds = step, seconds + 450
        trainer._save_this_step_if_due()
        frequency = trainer.config.trainer.save_freq
        if frequency > 0 and (step == 100 or step % frequency == 0):
            trainer._save_checkpoint()
    assert saved == {True: interim, False: asked_for}
    assert trainer.config.trainer.save_freq == save_freq


def test_checkpoints_are_deleted_by_us_alone_and_the_settings_keep_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = v0.made_trainer(tmp_path, RUNS["off"], v0.Workers(), monkeypatch)
    assert trainer.config.trainer.max_actor_ckpt_to_keep == 2  # as config.yaml then says
    more = {"actor_rollout_ref": {"model": {}}, "critic": {"model": {"path": None}}}
    trainer.config.merge_with(more, {"save": {"weights_dtype": "float32"}})

    def save(run: Any) -> None:
        assert run.config.trainer.max_actor_ckpt_to_keep is None
        (tmp_path / f"global_step_{run.global_steps}").mkdir()

    monkeypatch.setattr("recipe.rerule.training.saved_run.written_model", Mock())
    monkeypatch.setattr(ReRULETrainer, "_keep_metrics", lambda run: None)
    monkeypatch.setattr(RayPPOTrainer, "_save_checkpoint", save)
    for trainer.global_steps in (1, 2, 3):
        trainer._save(interim=False)
    assert [path.name for path in sorted(tmp_path.glob("global_step_*"))] == [
        "global_step_2",
        "global_step_3",
    ]


@pytest.mark.parametrize("kind", [ReRULETrainer, ReRULETrainerV1])
@pytest.mark.parametrize(
    ("steps", "val_only", "fails"), [(10, False, False), (7, False, True), (0, False, True), (0, True, False)]
)
def test_rows_that_end_before_the_last_step_are_an_error(
    kind: type, steps: int, val_only: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = bare(kind, trainer={"val_only": val_only, "total_epochs": 2})
    trainer.total_training_steps = 10
    verls = RayPPOTrainer if kind is ReRULETrainer else PPOTrainer
    monkeypatch.setattr(verls, "fit", lambda run, *given: setattr(run, "global_steps", steps + 1 - val_only))
    said = f"the rows of 2 epochs ended at step {steps} of 10, so that the last step"
    with pytest.raises(ValueError, match=said) if fails else contextlib.nullcontext():
        trainer.fit()


def test_the_best_step_by_validation_is_saved_and_noted(tmp_path: Path, monkeypatch: Any) -> None:
    """Scores by step; 12 is saved by `fit` before it is validated, 14 is validated before any step.

    4, 6 and 8 have equal scores, and 6 and 8 refuse as much, but less of the retain side than 4.
    """
    calls: list[str] = []
    folder = {"default_local_dir": str(tmp_path)}
    trainer = bare(ReRULETrainer, trainer=folder, save={"best": True, "minutes": None})
    trainer._save_freq, trainer._checkpoints_to_keep, trainer._said = 1_000_000, None, {}
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
        shares["val-health/retain/refused"] = 0.1 if 6 <= trainer.global_steps <= 8 else 0.2
        return shares if score is None else shares | {"val-health/score": score}

    scores = {0: 0.95, 2: 0.5, 4: 0.75, 6: 0.75, 8: 0.75, 10: None, 12: 0.9, 14: 0.99}
    trainer._save = save
    monkeypatch.setattr(RayPPOTrainer, "_validate", validate)
    kept = {}
    for step in scores:
        trainer.global_steps = step
        if step == 12:
            save(interim=False)
        if step == 14:
            trainer._said = None
        trainer._validate()
        kept[step] = sorted(path.name for path in tmp_path.glob("global_step_*"))
    by_validation = [("sleep", f"save {step}", f"weights of {step}") for step in (2, 4, 6)]
    assert calls == [*itertools.chain(*by_validation), "save 12"]
    assert (kept[8], kept[14]) == (["global_step_6"], ["global_step_12"])
    assert checkpoints.best(tmp_path) == checkpoints.Best(12, 0.9, 1.0, 0.5, 0.2)


@pytest.mark.parametrize(("kind", "verls"), [(ReRULETrainer, RayPPOTrainer), (ReRULETrainerV1, PPOTrainer)])
def test_the_sides_of_validation_rows_are_found_by_their_ids(
    kind: type, verls: type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """V0 keeps the ids of a batch, V1 puts its own into it; either repeats or reorders the rows."""
    rows = [{"ground_truth": {"type": side}} for side in ("forget", "retain")]
    told = {"mode": "qa", "subject": "Ada", "query": "Who?"}
    infos = [{"index": index, **told} for index in (5, 6)]
    (tmp_path / "records").mkdir()
    trainer = bare(kind, save={"best": False}, trainer={"default_local_dir": str(tmp_path)})
    trainer.global_steps, trainer.val_dataloader = 3, [{"reward_model": rows, "extra_info": infos}]

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
    retain = {"index": 6, "type": "retain", "rewards": [1.0, 0.0], **told}
    forget = {"index": 5, "type": "forget", "rewards": [1.0], **told}
    record = json.loads((tmp_path / "records" / "validation.jsonl").read_text())
    assert record == {"step": 3, "prompts": [retain, forget]}


def test_the_metrics_of_the_update_are_kept_at_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "records").mkdir()
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "records" / "metrics.1.jsonl"))
    trainer = bare(ReRULETrainer)
    trainer.global_steps, trainer._said = 6, {"actor/pg_loss": 0.5}
    trainer._keep_metrics()
    (line,) = (tmp_path / "records" / "metrics_at_save.1.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 6, "data": {"actor/pg_loss": 0.5, "training/global_step": 6.0}}


class WorkersV1(v0.Workers):
    """As V0's, for the calls of V1's trainer."""

    def _query_dispatch_info(self, mesh: str) -> list[int]:
        assert mesh == "actor"
        return [0, 1]

    def on_policy_v1(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self.calls.append(["on-policy", [STAY_LOADED] * bool(batch.extra_info.get(STAY_LOADED))])
        number = float(len(self.calls))
        metrics.update({"actor/pg_loss": number, "actor/grad_norm": number + 0.5})
        return batch


def made_v1(folder: Path, name: str, workers: WorkersV1, monkeypatch: Any) -> Any:
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
    trainer = ReRULETrainerV1(config=trainer_settings(folder), replay_config=ReplayConfig(**RUNS[name]))
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
    folder, workers = tmp_path / "v1", WorkersV1()
    trainer = made_v1(folder, name, workers, monkeypatch)
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


def test_a_step_without_a_whole_group_goes_on(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    trainer, queue = made_v1(tmp_path, "replay", WorkersV1(), monkeypatch), Queue(batch_of(1))
    queue.without(*[f"{uid}_0_0" for uid in queue.submitted])
    metrics = updated(trainer, 1, queue, monkeypatch)
    assert (metrics["replay/short_groups"], metrics["replay/size"]) == (len(queue.submitted), 0)
    assert json.loads((tmp_path / "records" / "prompts.jsonl").read_text()) == {"step": 1, "prompts": []}
    printed = capsys.readouterr()
    assert f"step 1/{STEPS}" in printed.out
    assert f"warning: step 1: {len(queue.submitted)} prompts" in printed.err


def test_a_step_that_updates_no_actor_has_no_metrics_to_keep(tmp_path: Path, monkeypatch: Any) -> None:
    made_v1(tmp_path, "off", WorkersV1(), monkeypatch)._keep_metrics()  # trainer.critic_warmup
    assert list((tmp_path / "records").iterdir()) == []


def test_prompts_are_numbered_as_they_are_submitted_and_anew_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = made_v1(tmp_path, "off", WorkersV1(), monkeypatch)
    monkeypatch.setattr(PPOTrainer, "_submit_batch_to_rollout", lambda trainer, batch: len(batch["uid"]))
    for uids in (["b", "c"], ["a"]):
        assert trainer._submit_batch_to_rollout({"uid": uids}) == len(uids)
    assert trainer._submitted == {"b": 0, "c": 1, "a": 2}
    trainer.on_step_begin()
    trainer._submit_batch_to_rollout({"uid": ["d"]})
    assert trainer._submitted == {"d": 0}


class RecordingWorkers:
    """Keeps what verl's own `_update_actor` sends, and answers as the workers of V0 or V1 do."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def update_actor(self, data: Any) -> Any:
        metrics = {"pg_loss": [0.25, 0.75], "grad_norm": [2.0], "mfu": 0.0}
        if isinstance(data, KVBatchMeta):
            self.sent.append(copy.deepcopy(vars(data)))
            return {"metrics": metrics}
        self.sent.append(data.clone())
        return tu.get_tensordict({}, non_tensor_dict={"metrics": metrics})


ACTOR = {
    **{"ppo_mini_batch_size": 4, "ppo_epochs": 1, "data_loader_seed": 3, "shuffle": False},
    **{"calculate_entropy": False, "entropy_coeff": 0.0},
}
"""What verl's own update reads of the actor's settings."""


def test_without_replay_the_workers_of_v0_get_what_verls_own_trainer_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 1: verl's code on both sides, but for the data set's labels, which no worker reads."""
    (tmp_path / "records").mkdir()
    verls_update = RayPPOTrainer._update_actor
    trainer = v0.made_trainer(tmp_path, RUNS["off"], RecordingWorkers(), monkeypatch)
    monkeypatch.setattr(RayPPOTrainer, "_update_actor", verls_update)
    settings = {"actor": ACTOR, "rollout": {"multi_turn": {"enable": False}}}
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


def test_without_replay_the_workers_of_v1_get_what_verls_own_trainer_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 1: verl's code on both sides, on a batch with rows that fill it up."""
    verls_update = PPOTrainerSync._update_actor
    trainer = made_v1(tmp_path, "off", WorkersV1(), monkeypatch)
    monkeypatch.setattr(PPOTrainerSync, "_update_actor", verls_update)
    OmegaConf.update(trainer.config, "actor_rollout_ref.actor", ACTOR)
    trainer.actor_rollout_wg = RecordingWorkers()
    ours = updated(trainer, 1, Queue(batch_of(1)), monkeypatch)
    monkeypatch.setattr(trainer, "_update_actor", functools.partial(verls_update, trainer))
    verls = updated(trainer, 1, Queue(batch_of(1)), monkeypatch)
    one, other = trainer.actor_rollout_wg.sent
    assert one == other
    assert verls.items() <= ours.items()
    assert not [name for name in ours if name.startswith(("replay/updates", "replay/size"))]


# What two runs must have in common to share stored rollouts.


def identity(
    n: int = 8, length: int = 24, temperature: float = 1.0, model: str = "/m", **vocabulary: int
) -> dict[str, Any]:
    actor = {"model": {"path": model}, "rollout": {"n": n, "temperature": temperature}}
    config = {"actor_rollout_ref": actor, "data": {"max_response_length": length}}
    return run_identity(OmegaConf.create(config), SimpleNamespace(get_vocab=lambda: vocabulary))


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (identity(a=0, b=1), []),
        (identity(b=1, a=0), []),
        (identity(n=4, a=0, b=1), ["actor_rollout_ref.rollout.n"]),
        (identity(length=25, a=0, b=1), ["data.max_response_length"]),
        (identity(temperature=0.7, a=0, b=1), ["actor_rollout_ref.rollout.temperature"]),
        (identity(model="/other", a=0, b=1), ["actor_rollout_ref.model.path"]),
        (identity(a=1, b=0), ["tokenizer"]),
        (identity(a=0, b=1, c=2), ["tokenizer"]),
    ],
)
def test_a_difference_shows_under_its_own_setting(other: dict[str, Any], differs: list[str]) -> None:
    one = identity(a=0, b=1)
    assert [setting for setting in one if one[setting] != other[setting]] == differs
