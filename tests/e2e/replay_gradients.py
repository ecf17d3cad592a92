"""One rank of the gradient check: real replay updates through the real worker, by plain gradient descent.

torchrun replay_gradients.py JOB.json: for each setup of the job builds an actor worker; from the same initial
parameters does one replay update with SGD for each of its cases, and writes the changes of the parameters,
whose quotients by -lr are the gradients.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load_file, save_file

from recipe.rerule import platform

platform.select("cpu")

from verl.utils import tensordict_utils as tu  # noqa: E402  (the platform comes first)
from verl.utils.distributed import initialize_global_process_group  # noqa: E402
from verl.workers.utils.padding import no_padding_2_padding  # noqa: E402

from recipe.rerule.replay import Replay, ReplayConfig, RolloutGroup, load  # noqa: E402
from recipe.rerule.training.batches import replay_batch  # noqa: E402
from recipe.rerule.training.worker import ReplayActorWorker  # noqa: E402

LEARNING_RATE = 1e3
"""Large, so that the change of a parameter loses nothing to the rounding of its sum with the parameter."""


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    _, rank, ranks = initialize_global_process_group()
    initial = load_file(f"{job['model']}/model.safetensors")
    replay = Replay(ReplayConfig(admission="all", require_signal=False))
    load(replay, job["groups"])
    groups = [stored.group() for stored in replay.buffer]
    common = stage2_config(job["model"])
    for setup in job["setups"]:
        worker = ReplayActorWorker(config=actor_config(common, setup["overrides"]), role="actor")
        worker.init_model()
        changes, metrics = run_cases(worker, setup["cases"], initial, groups, (rank, ranks))
        if rank == 0:
            save_file(changes, f"{job['out']}/{setup['name']}.safetensors")
            Path(f"{job['out']}/{setup['name']}.json").write_text(json.dumps(metrics))
    torch.distributed.destroy_process_group()


def stage2_config(model: str) -> DictConfig:
    overrides = [
        "experiment=tiny",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.actor.optim.optimizer=SGD",
        f"actor_rollout_ref.actor.optim.lr={LEARNING_RATE}",
        "actor_rollout_ref.actor.optim.weight_decay=0",
        "actor_rollout_ref.actor.optim.clip_grad=1e9",
        "data.train_files=none",
        "data.val_files=none",
    ]
    with initialize_config_module("recipe.rerule.config", version_base=None):
        return compose("rerule_trainer", overrides)


def actor_config(common: DictConfig, overrides: list[str]) -> DictConfig:
    config = OmegaConf.merge(common, OmegaConf.from_dotlist(overrides))
    OmegaConf.resolve(config)
    return config.actor_rollout_ref


def run_cases(
    worker: ReplayActorWorker,
    cases: list[dict[str, Any]],
    initial: dict[str, torch.Tensor],
    groups: list[RolloutGroup],
    place: tuple[int, int],
) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, float]]]:
    """Changes of the parameters as "case/parameter", and metrics by case; each case starts at `initial`.

    SGD without momentum keeps nothing from one case to the next but the parameters, which are put back.
    """
    engine = worker.actor.engine
    shards = [parameter.detach().clone() for parameter in engine.module.parameters()]
    changes, metrics = {}, {}
    for case in cases:
        with torch.no_grad():
            for parameter, shard in zip(engine.module.parameters(), shards, strict=True):
                parameter.copy_(shard)
        metrics[case["name"]] = update(worker, case, my_rows(groups, case, place))
        after = dict(engine.get_per_tensor_param()[0])
        for name, value in initial.items():
            changes[f"{case['name']}/{name}"] = (after[name].detach().float() - value).contiguous()
    return changes, metrics


def my_rows(groups: list[RolloutGroup], case: dict[str, Any], place: tuple[int, int]) -> Any:
    """This rank's part of the replay batch, cut as verl's dispatch cuts it."""
    config = ReplayConfig.from_dict(case["replay"])
    rows = replay_batch(groups, config, pad_token_id=0, temperature=1.0)
    rank, ranks = place
    return tu.chunk_tensordict(rows, ranks)[rank]


def update(worker: ReplayActorWorker, case: dict[str, Any], rows: Any) -> dict[str, float]:
    if case["on_policy"]:
        take_current_log_probs(worker, rows)
    output = worker.update_actor_replay(rows)
    return tu.get(output, "metrics")


def take_current_log_probs(worker: ReplayActorWorker, rows: Any) -> None:
    """Replace the stored old log-probs by what the worker says now, in one micro-batch."""
    query = rows.copy()
    tu.assign_non_tensor(query, compute_loss=False, micro_batch_size_per_gpu=len(rows))
    output = worker.compute_log_prob(query)
    rows["old_log_probs"] = no_padding_2_padding(tu.get(output, "log_probs"), rows).float()


if __name__ == "__main__":
    main()
