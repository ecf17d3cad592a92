"""One rank of the gradient check of mixed updates: verl's own way from a batch to the worker, with SGD.

torchrun mixed_gradients.py JOB.json: for each setup of the job builds an actor worker; from the
same initial parameters does one mixed update for each of its cases, with the first groups as the step's own
and the others as stored ones, and writes the changes of the parameters. These divided by -lr are gradients.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import DictConfig
from safetensors.torch import load_file, save_file

from recipe.rerule import platform

platform.select("cpu")

from replay_gradients import (  # noqa: E402  (in this folder, a script's first place to import from)
    actor_config,
    drawn,
    read_groups,
    stage2_config,
    take_current_log_probs,
)
from verl import DataProto  # noqa: E402  (the platform comes first)
from verl.trainer.ppo.ray_trainer import RayPPOTrainer  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.utils.distributed import initialize_global_process_group  # noqa: E402

from recipe.rerule.replay import ReplayConfig, RolloutGroup, pad_groups  # noqa: E402
from recipe.rerule.training.batches import replay_batch  # noqa: E402
from recipe.rerule.training.mixed_batches import MIXED, mixed_batch  # noqa: E402
from recipe.rerule.training.mixed_update import MixedActorWorker  # noqa: E402

Parts = tuple[list[RolloutGroup], list[RolloutGroup]]
"""The step's own groups, and stored ones."""


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    _, rank, ranks = initialize_global_process_group()
    initial = load_file(f"{job['model']}/model.safetensors")
    groups = read_groups(Path(job["groups"]))
    common = stage2_config(job["model"])
    for setup in job["setups"]:
        worker = MixedActorWorker(config=actor_config(common, setup["overrides"]), role="actor")
        worker.init_model()
        parts = groups[: job["own"]], groups[job["own"] :]
        found = run_cases(worker, whole(common, worker), setup["cases"], parts, initial, (rank, ranks))
        if rank == 0:
            save_file(found[0], f"{job['out']}/{setup['name']}.safetensors")
            Path(f"{job['out']}/{setup['name']}.json").write_text(json.dumps(found[1]))
    torch.distributed.destroy_process_group()


def whole(common: DictConfig, worker: MixedActorWorker) -> Any:
    """What verl's trainer reads of the configuration."""
    return SimpleNamespace(
        actor_rollout_ref=SimpleNamespace(
            rollout=common.actor_rollout_ref.rollout, actor=worker.config.actor
        ),
        get=lambda name: None,
    )


def run_cases(
    worker: MixedActorWorker,
    config: Any,
    cases: list[dict[str, Any]],
    groups: Parts,
    initial: dict[str, torch.Tensor],
    place: tuple[int, int],
) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, float]]]:
    """Changes of the parameters as "case/parameter", and metrics by case; each case starts at `initial`."""
    engine = worker.actor.engine
    shards = [parameter.detach().clone() for parameter in engine.module.parameters()]
    changes, metrics = {}, {}
    for case in cases:
        with torch.no_grad():
            for parameter, shard in zip(engine.module.parameters(), shards, strict=True):
                parameter.copy_(shard)
        metrics[case["name"]] = update(worker, config, case, groups, place)
        after = dict(engine.get_per_tensor_param()[0])
        for name, value in initial.items():
            changes[f"{case['name']}/{name}"] = (after[name].detach().float() - value).contiguous()
    return changes, metrics


def update(
    worker: MixedActorWorker,
    config: Any,
    case: dict[str, Any],
    groups: Parts,
    place: tuple[int, int],
) -> dict[str, float]:
    """One mixed update by verl's `_update_actor`, cut for this rank as verl's dispatch cuts it."""
    rank, ranks = place
    replay = ReplayConfig.from_dict(case["replay"])
    own = own_rows(worker, groups[0])
    batch = mixed_batch(own, range(len(own)), drawn(groups[1], replay), replay, 0, ranks)

    def update_actor(rows: Any) -> Any:
        return worker.update_actor(tu.chunk_tensordict(rows, ranks)[rank])

    trainer = SimpleNamespace(config=config, actor_rollout_wg=SimpleNamespace(update_actor=update_actor))
    before = worker.actor.engine.lr_scheduler.last_epoch
    output = RayPPOTrainer._update_actor(trainer, batch)
    assert worker.actor.engine.lr_scheduler.last_epoch == before + 1, "one step of the schedule"
    found: dict[str, float] = output.meta_info["metrics"][f"actor/{MIXED}"]
    return found


def own_rows(worker: MixedActorWorker, groups: list[RolloutGroup]) -> DataProto:
    """Rows of the step: their old log-probs are those of the policy as it is."""
    rows = replay_batch(groups, ReplayConfig(), pad_token_id=0, temperature=1.0)
    take_current_log_probs(worker, rows)
    planes = pad_groups(groups, pad_token_id=0)
    del planes["rewards"]
    planes["old_log_probs"] = rows["old_log_probs"]
    return DataProto.from_dict(tensors=planes, meta_info={"temperature": 1.0})


if __name__ == "__main__":
    main()
