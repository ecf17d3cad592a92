"""One process: what the updates of a step do to the schedule, to offloading and to the parameters.

torchrun worker_updates.py JOB.json: with parameter and optimiser offload on, does an on-policy update and
then replay updates, and writes what was seen.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from recipe.rerule import platform

platform.select("cpu")

from verl import DataProto  # noqa: E402  (the platform comes first)
from verl.trainer.ppo.ray_trainer import RayPPOTrainer  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.utils.distributed import initialize_global_process_group  # noqa: E402

from recipe.rerule.replay import Replay, ReplayConfig, RolloutGroup, load, pad_groups  # noqa: E402
from recipe.rerule.training.batches import replay_batch  # noqa: E402
from recipe.rerule.training.worker import STAY_LOADED, ReplayActorWorker  # noqa: E402


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    initialize_global_process_group()
    replay = Replay(ReplayConfig())
    load(replay, job["groups"])
    groups = [stored.group() for stored in replay.buffer]
    seen = {
        "replay": run(job, groups, ["on_policy", "replay", "replay"], stay=True),
        "apart": run(job, groups, ["on_policy", "replay", "replay"], stay=False),
        "verl_once": run(job, groups, ["on_policy"], stay=False),
    }
    Path(job["out"]).write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


def run(job: dict[str, Any], groups: list[RolloutGroup], updates: list[str], stay: bool) -> dict[str, Any]:
    """Do the updates of one step with a fresh worker; every one but the last stays loaded with `stay`."""
    config = compose_config(job["model"], len(groups), groups[0].n)
    worker = ReplayActorWorker(config=config.actor_rollout_ref, role="actor")
    worker.init_model()
    moves = count_moves(worker.actor.engine)
    rates = []
    for number, update in enumerate(updates, start=1):
        marks = {STAY_LOADED: True} if stay and number < len(updates) else {}
        rates.append(UPDATES[update](worker, config, groups, marks))
    parameters = dict(worker.actor.engine.get_per_tensor_param()[0])
    total = sum(float(value.detach().double().abs().sum()) for value in parameters.values())
    return {
        "moves": moves,
        "schedule": worker.actor.engine.lr_scheduler.last_epoch,
        "rates": rates,
        "parameters": total,
    }


def count_moves(engine: Any) -> list[str]:
    """Where the engine is moved to from now on, in order."""
    moves: list[str] = []
    to = engine.to

    def counted(device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
        moves.append(f"{'params ' if model else ''}{'optimizer' if optimizer else ''}")
        to(device=device, model=model, optimizer=optimizer, grad=grad)

    engine.to = counted
    return moves


def on_policy(
    worker: ReplayActorWorker, config: DictConfig, groups: list[RolloutGroup], marks: dict[str, bool]
) -> float:
    """verl's own way from a batch to the worker's update; returns the learning rate it reports."""
    trainer = SimpleNamespace(config=config, actor_rollout_wg=worker)
    rows = pad_groups(groups, pad_token_id=0)
    del rows["rewards"]
    batch = DataProto.from_single_dict(rows, meta_info={"temperature": 1.0, **marks})
    batch.non_tensor_batch["uid"] = np.array([str(row) for row in range(len(batch))], dtype=object)
    output = RayPPOTrainer._update_actor(trainer, batch)
    (rate,) = output.meta_info["metrics"]["actor/lr"]
    return rate


def replayed(
    worker: ReplayActorWorker, config: DictConfig, groups: list[RolloutGroup], marks: dict[str, bool]
) -> float:
    data = replay_batch(groups, ReplayConfig(), pad_token_id=0, temperature=1.0)
    tu.assign_non_tensor(data, **marks)
    worker.update_actor_replay(data)
    return worker.actor.engine.lr_scheduler.get_last_lr()[0]


UPDATES = {"on_policy": on_policy, "replay": replayed}


def compose_config(model: str, prompts: int, rollouts: int) -> DictConfig:
    actor = "actor_rollout_ref.actor"
    overrides = [
        "experiment=tiny",
        f"actor_rollout_ref.model.path={model}",
        f"actor_rollout_ref.rollout.n={rollouts}",
        f"{actor}.ppo_mini_batch_size={prompts}",
        f"{actor}.fsdp_config.param_offload=true",
        f"{actor}.fsdp_config.optimizer_offload=true",
        f"{actor}.optim.lr_scheduler_type=cosine",
        f"{actor}.optim.total_training_steps=4",
        "data.train_files=none",
        "data.val_files=none",
    ]
    with initialize_config_module("recipe.rerule.config", version_base=None):
        config = compose("rerule_trainer", overrides)
    OmegaConf.resolve(config)
    return config


if __name__ == "__main__":
    main()
