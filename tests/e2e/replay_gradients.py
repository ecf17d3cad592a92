"""One rank of the checks of the real worker: torchrun replay_gradients.py JOB.json.

Gradients: for each setup of the job an actor worker does one replay update by plain gradient descent for each
of its cases, always from the same initial parameters. The changes of the parameters are written; their
quotients by -lr are the gradients.

Updates, on one rank alone: with parameter and optimiser offload on, what an on-policy update and the replay
updates after it do to the learning-rate schedule, to offloading and to the parameters.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load_file, save_file

from recipe.rerule import platform

platform.select("cpu")

from verl import DataProto  # noqa: E402  (the platform comes first)
from verl.trainer.ppo.ray_trainer import RayPPOTrainer  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.workers.utils.padding import no_padding_2_padding  # noqa: E402

from recipe.rerule.replay import Replay, ReplayConfig, RolloutGroup, load, pad_groups  # noqa: E402
from recipe.rerule.training.batches import replay_batch  # noqa: E402
from recipe.rerule.training.worker import STAY_LOADED, ReplayActorWorker  # noqa: E402

LEARNING_RATE = 1e3
"""Large, so that the change of a parameter loses nothing to the rounding of its sum with the parameter."""
ACTOR = "actor_rollout_ref.actor"
RATE, STEPS = 2e-4, 4
"""Of the cosine schedule of the updates of one step."""
UPDATES = (
    *(f"{ACTOR}.optim.optimizer=AdamW", f"{ACTOR}.optim.lr={RATE}"),
    *(f"{ACTOR}.optim.lr_scheduler_type=cosine", f"{ACTOR}.optim.total_training_steps={STEPS}"),
    *(f"{ACTOR}.fsdp_config.param_offload=true", f"{ACTOR}.fsdp_config.optimizer_offload=true"),
)


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    initial = load_file(f"{job['model']}/model.safetensors")
    replay = Replay(ReplayConfig(admission="all", require_signal=False))
    load(replay, job["groups"])
    groups = [stored.group() for stored in replay.buffer]
    for name, setup in job["setups"].items():
        overrides = [*setup["overrides"], f"{ACTOR}.loss_agg_mode={setup['aggregate']}"]
        worker = built(settings(job["model"], overrides))
        changes, metrics = run_cases(worker, setup, initial, groups, (rank, ranks))
        if rank == 0:
            save_file(changes, f"{job['out']}/{name}.safetensors")
            Path(f"{job['out']}/{name}.json").write_text(json.dumps(metrics))
    if ranks == 1:
        sizes = [f"actor_rollout_ref.rollout.n={groups[0].n}", f"{ACTOR}.ppo_mini_batch_size={len(groups)}"]
        config = settings(job["model"], [*sizes, *UPDATES])
        seen = {
            "replay": updated(config, groups, replays=2, stay=True),
            "apart": updated(config, groups, replays=2, stay=False),
            "verl_once": updated(config, groups, replays=0, stay=False),
        }
        Path(f"{job['out']}/updates.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


def settings(model: str, overrides: list[str]) -> DictConfig:
    """Of stage 2, with gradient descent unless `overrides` say otherwise."""
    common = (
        f"experiment=tiny actor_rollout_ref.model.path={model} data.train_files=none data.val_files=none "
        f"{ACTOR}.optim.optimizer=SGD {ACTOR}.optim.lr={LEARNING_RATE} {ACTOR}.optim.weight_decay=0 "
        f"{ACTOR}.optim.clip_grad=1e9"
    )
    with initialize_config_module("recipe.rerule.config", version_base=None):
        config = OmegaConf.merge(compose("rerule_trainer", common.split()), OmegaConf.from_dotlist(overrides))
    OmegaConf.resolve(config)
    return config


def built(config: DictConfig) -> ReplayActorWorker:
    worker = ReplayActorWorker(config=config.actor_rollout_ref, role="actor")
    worker.init_model()
    group = torch.distributed.distributed_c10d._get_default_group()
    waits = group._get_backend(torch.device("cpu")).options._timeout
    assert waits.total_seconds() == config.actor_rollout_ref.nccl_timeout == 3600
    return worker


def run_cases(
    worker: ReplayActorWorker,
    setup: dict[str, Any],
    initial: dict[str, torch.Tensor],
    groups: list[RolloutGroup],
    place: tuple[int, int],
) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, float]]]:
    """Changes of the parameters as "case/parameter", and metrics by case; each case starts at `initial`.

    SGD without momentum keeps nothing from one case to the next but the parameters, which are put back.
    """
    engine, (rank, ranks) = worker.actor.engine, place
    shards = [parameter.detach().clone() for parameter in engine.module.parameters()]
    changes, metrics = {}, {}
    for name, replay in setup["cases"].items():
        with torch.no_grad():
            for parameter, shard in zip(engine.module.parameters(), shards, strict=True):
                parameter.copy_(shard)
        whole = replay_batch(groups, ReplayConfig.from_dict(replay), pad_token_id=0, temperature=1.0)
        rows = tu.chunk_tensordict(whole, ranks)[rank]  # as verl's dispatch cuts it
        if setup["on_policy"]:
            take_current_log_probs(worker, rows)
        metrics[name] = tu.get(worker.update_actor_replay(rows), "metrics")
        after = dict(engine.get_per_tensor_param()[0])
        for key, value in initial.items():
            changes[f"{name}/{key}"] = (after[key].detach().float() - value).contiguous()
    return changes, metrics


def take_current_log_probs(worker: ReplayActorWorker, rows: Any) -> None:
    """Replace the stored old log-probs by what the worker says now, in one micro-batch."""
    query = rows.copy()
    tu.assign_non_tensor(query, compute_loss=False, micro_batch_size_per_gpu=len(rows))
    output = worker.compute_log_prob(query)
    rows["old_log_probs"] = no_padding_2_padding(tu.get(output, "log_probs"), rows).float()


def updated(config: DictConfig, groups: list[RolloutGroup], replays: int, stay: bool) -> dict[str, Any]:
    """What a new worker's updates of one step did; every one but the last stays loaded with `stay`."""
    worker = built(config)
    moves = count_moves(worker.actor.engine)
    rates = [on_policy(worker, config, groups, {STAY_LOADED: True} if stay else {})]
    for number in range(replays):
        data = replay_batch(groups, ReplayConfig(), pad_token_id=0, temperature=1.0)
        tu.assign_non_tensor(data, **({STAY_LOADED: True} if stay and number < replays - 1 else {}))
        worker.update_actor_replay(data)
        rates.append(worker.actor.engine.lr_scheduler.get_last_lr()[0])
    parameters = dict(worker.actor.engine.get_per_tensor_param()[0])
    return {
        "moves": moves,
        "schedule": worker.actor.engine.lr_scheduler.last_epoch,
        "rates": rates,
        "parameters": sum(float(value.detach().double().abs().sum()) for value in parameters.values()),
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


if __name__ == "__main__":
    main()
