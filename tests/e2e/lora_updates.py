"""One process: which weights the updates of a step move where there is an adapter.

torchrun lora_updates.py JOB.json: for a base in float32 and in bfloat16, makes a replay update and then an
on-policy update through the real worker, and writes the dtypes, and the names of weights that each moved.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from recipe.rerule import platform

platform.select("cpu")

import worker_updates  # noqa: E402  (in this folder, which is a script's first place to import from)
from verl.utils.distributed import initialize_global_process_group  # noqa: E402  (the platform comes first)

from recipe.rerule.replay import Replay, ReplayConfig, load  # noqa: E402
from recipe.rerule.training.worker import ReplayActorWorker  # noqa: E402

LORA = ("lora_rank=4", "lora_alpha=8")


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    initialize_global_process_group()
    replay = Replay(ReplayConfig())
    load(replay, job["groups"])
    groups = [stored.group() for stored in replay.buffer]
    seen = {dtype: run(job["model"], groups, dtype) for dtype in ("fp32", "bf16")}
    Path(job["out"]).write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


def run(model: str, groups: Any, dtype: str) -> dict[str, Any]:
    config = worker_updates.compose_config(
        model,
        len(groups),
        groups[0].n,
        *(f"actor_rollout_ref.model.{setting}" for setting in LORA),
        f"actor_rollout_ref.actor.fsdp_config.model_dtype={dtype}",
        "actor_rollout_ref.actor.optim.lr_scheduler_type=constant",
        "actor_rollout_ref.actor.optim.lr=1e-6",  # vanishes in bfloat16 beside weights of 0.01 and more
    )
    worker = ReplayActorWorker(config=config.actor_rollout_ref, role="actor")
    worker.init_model()
    module = worker.actor.engine.module
    seen: dict[str, Any] = {"dtypes": {name: str(value.dtype) for name, value in module.named_parameters()}}
    for name, update in (("replay", worker_updates.replayed), ("on_policy", worker_updates.on_policy)):
        before = copied(module)
        update(worker, config, groups, {})
        after = copied(module)
        seen[name] = {key: (after[key] != value).float().mean().item() for key, value in before.items()}
    return seen


def copied(module: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().full_tensor().clone() for name, value in module.named_parameters()}


if __name__ == "__main__":
    main()
