"""What `_update_actor` sends, writes and logs, held against `fixtures/update_actor.json`.

verl's own update and the workers are left out: they are tested on the real stack (tests/e2e).
"""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.utils import tensordict_utils as tu

from recipe.rerule.replay import Replay, ReplayConfig, ReplayStateError, RolloutGroup, pad_groups
from recipe.rerule.runs import checkpoints
from recipe.rerule.training.health import Health
from recipe.rerule.training.saved_run import SavedRun, check_references
from recipe.rerule.training.trainer import ReRULETrainer
from recipe.rerule.training.worker import STAY_LOADED
from tests.made_runs import trainer_settings
from tests.replay.groups import make_group
from tests.replay.runs import PAPER, offered

FIXTURE = Path(__file__).parent / "fixtures" / "update_actor.json"
STEPS = 5
RUNS = {
    "replay": {**PAPER, "min_groups": 2, "updates_per_step": 2},
    "control": {**PAPER, "min_groups": 2, "updates_per_step": 2, "update": "on_policy"},
    "off": {"enable": False},
}


class Tokenizer:
    pad_token_id = 0

    def batch_decode(self, rows: list[list[int]], skip_special_tokens: bool) -> list[str]:
        return [" ".join(map(str, ids)) for ids in rows]


class Workers:
    """Notes each call, and answers with metrics that depend on how many there were."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_policy(self, trainer: Any, batch: DataProto) -> DataProto:
        marks = [STAY_LOADED] * bool(batch.meta_info.get(STAY_LOADED))
        self.calls.append(["on-policy", marks, sorted(batch.non_tensor_batch), self._sum(batch.batch)])
        number = float(len(self.calls))
        metrics = {"actor/pg_loss": [number], "actor/grad_norm": [number + 0.5]}
        return DataProto(meta_info={"metrics": metrics})

    def update_actor_replay(self, data: TensorDict) -> TensorDict:
        stays = bool(tu.pop(data, STAY_LOADED, default=False))
        self.calls.append(["replay", [STAY_LOADED] * stays, len(data), self._sum(data)])
        number = float(len(self.calls))
        metrics = {"replay/ratio_max": number, "replay/pg_loss": number, "replay/seconds/train": 1.0}
        return tu.get_tensordict({}, non_tensor_dict={"metrics": metrics})

    @staticmethod
    def _sum(data: TensorDict) -> float:
        return round(float(data["old_log_probs"][data["response_mask"].bool()].double().sum()), 4)


def batch_of(step: int) -> DataProto:
    """The step's groups as verl gives them: rows shuffled, with the data set's labels."""
    groups = offered(step)
    rows = pad_groups(groups, pad_token_id=0)
    labels = [group for group in groups for _ in range(group.n)]
    scores = torch.zeros(rows["responses"].shape)
    scores[:, 0] = rows.pop("rewards")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))
    labelled = [columns(step, labels[row]) for row in order.tolist()]
    return DataProto.from_dict(
        tensors={name: plane[order] for name, plane in {**rows, "token_level_scores": scores}.items()},
        non_tensors={name: np.array([row[name] for row in labelled], dtype=object) for name in labelled[0]},
    )


def columns(step: int, group: RolloutGroup) -> dict[str, Any]:
    """What the data set says of a group's rows."""
    index = group.prompt_index
    texts = {"subject": f"subject {index % 3}", "query": f"query {index}"}
    return {
        "uid": f"{step}-{index}",
        "reward_model": {"ground_truth": {"type": group.side}},
        "extra_info": {"index": index, "mode": group.mode, **texts},
        "refused": float(index % 2),
    }


def made_trainer(folder: Path, settings: dict[str, Any], workers: Any, monkeypatch: Any) -> Any:
    """ReRULE's trainer around no more of verl's than its settings."""
    config = trainer_settings(folder)

    def start(trainer: Any, **parts: Any) -> None:
        trainer.config, trainer.tokenizer = parts["config"], parts["tokenizer"]
        trainer.total_training_steps, trainer.actor_rollout_wg = STEPS, workers

    monkeypatch.setattr(RayPPOTrainer, "__init__", start)
    monkeypatch.setattr(RayPPOTrainer, "init_workers", lambda trainer: None)
    monkeypatch.setattr(RayPPOTrainer, "_get_dp_size", lambda trainer, group, role: 2)
    monkeypatch.setattr(RayPPOTrainer, "_update_actor", lambda self, batch: workers.on_policy(self, batch))
    trainer = ReRULETrainer(config=config, tokenizer=Tokenizer(), replay_config=ReplayConfig(**settings))
    trainer.init_workers()
    return trainer


def run(folder: Path, name: str, monkeypatch: Any) -> dict[str, Any]:
    """The calls, metrics, printed lines' ends and files of a run; seconds as null."""
    (folder / "records").mkdir(parents=True)
    workers = Workers()
    trainer = made_trainer(folder, RUNS[name], workers, monkeypatch)
    logged = []
    for step in range(1, STEPS + 1):
        trainer.global_steps = step
        metrics = trainer._update_actor(batch_of(step)).meta_info["metrics"]
        logged.append([[key, None if "seconds" in key else value] for key, value in metrics.items()])
    files = {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted((folder / "records").rglob("*.jsonl"))
        if path.name not in ("2.jsonl", "3.jsonl")
    }
    return {"calls": workers.calls, "metrics": json.loads(json.dumps(logged)), "files": files}


@pytest.mark.parametrize("name", RUNS)
def test_calls_metrics_and_files_of_a_run_are_as_recorded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = json.loads(FIXTURE.read_text())[name]
    found = run(tmp_path, name, monkeypatch)
    found["printed"] = capsys.readouterr().out
    for part in expected:
        assert found[part] == expected[part], part


def test_a_fault_that_holds_makes_the_next_step_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed run is at its end then, unless the setting is taken back."""
    (tmp_path / "records").mkdir()
    trainer = made_trainer(tmp_path, RUNS["off"], Workers(), monkeypatch)
    trainer.config.trainer.update({"resume_mode": "auto", "resume_from_path": None})
    trainer.config.health.stop_after = 2
    trainer.health, trainer.total_training_steps = Health(2), 40
    lines = []
    for step in range(1, 7):
        trainer.global_steps = step
        batch = batch_of(step)
        batch.non_tensor_batch["refused"][:] = 0.0
        metrics = trainer._update_actor(batch).meta_info["metrics"]
        numbers = {name: value for name, value in metrics.items() if isinstance(value, float)}
        lines.append(json.dumps({"step": step, "data": numbers}) + "\n")
    assert trainer.total_training_steps == 6  # no refusals over four steps at step 4, and at step 5
    printed = capsys.readouterr()
    assert printed.err.count("warning: step 4: 0% of the forget responses") == 1
    assert "step 5: the run ends after step 6, because health.stop_after is 2 and" in printed.out

    (tmp_path / "records" / "metrics.jsonl").write_text("".join(lines))
    trainer.total_training_steps = 40
    for step, by_setting in ((5, {2: False}), (6, {2: True, 1: False, 3: False, None: False})):
        (tmp_path / f"global_step_{step}").mkdir()
        checkpoints.finish(tmp_path, step)
        for stop_after, ended in by_setting.items():
            trainer.config.health.stop_after = stop_after
            assert trainer.is_finished() is ended, (step, stop_after)
    trainer.config.health.stop_after = 2
    trainer.config.trainer.val_only = True
    assert not trainer.is_finished()  # its last model is validated
    trainer.config.trainer.val_only = False
    trainer.config.trainer.resume_mode = "resume_path"
    for run, step, ended in ((tmp_path, 39, False), (tmp_path, 40, True), (tmp_path / "other", 39, False)):
        trainer.config.trainer.resume_from_path = str(run / f"global_step_{step}")
        assert trainer.is_finished() is ended, (run, step)
    trainer.config.trainer.resume_from_path = str(tmp_path / "other" / "global_step_40")
    with pytest.raises(ValueError, match="global_step_40, and this run's last step is 40: no step is left"):
        trainer.is_finished()
    trainer.config.trainer.update({"resume_mode": "auto", "resume_from_path": None})
    # A run that was killed after the checkpoint of step 5 ends at step 6 too.
    trainer.config.health.stop_after = 2
    for at, last in ((4, 40), (5, 6)):
        monkeypatch.setattr(SavedRun, "_load_checkpoint", lambda run, at=at: setattr(run, "global_steps", at))
        trainer._load_checkpoint()
        assert trainer.total_training_steps == last


@pytest.mark.parametrize(
    ("with_ref", "use_kl", "refused"), [(False, True, True), (False, False, False), (True, True, False)]
)
def test_a_buffer_without_references_is_refused_where_the_kl_term_needs_them(
    with_ref: bool, use_kl: bool, refused: bool
) -> None:
    replay = Replay(ReplayConfig(**{**PAPER, "use_kl_loss": use_kl, "admission": "all"}))
    replay.offer([make_group(1, with_ref=with_ref)], step=1)
    assert len(replay.buffer) == 1
    with pytest.raises(ReplayStateError, match="without ref") if refused else contextlib.nullcontext():
        check_references(replay)
