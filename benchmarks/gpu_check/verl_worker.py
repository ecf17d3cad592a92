"""Part 3: the recipe's own worker, in a process of its own, since verl chooses its platform on import.

RANK=0 ... python -m benchmarks.gpu_check.verl_worker {cuda,cpu} is its one rank. It builds the recipe's actor
worker with verl's FSDP2 engine and does one replay update by plain gradient descent, with one micro-batch and
with several. The change of the parameters over the learning rate is the gradient, which is compared with
float64: on cuda in bfloat16, as verl computes, and in float32. It prints a JSON list of lines.
"""

from __future__ import annotations

import copy
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from benchmarks.gpu_check import reference
from benchmarks.gpu_check.lines import Line
from benchmarks.gpu_check.made import Rows
from benchmarks.gpu_check.numerics import KL_COEF, LIMITS, gradient_error, stored_groups
from data_prep.world.config import WorldConfig
from data_prep.world.model import make_model, train_tokenizer
from data_prep.world.splits import make_world
from recipe.rerule import platform
from recipe.rerule.replay import ReplayConfig, RolloutGroup

CONFIG = WorldConfig(hidden_size=64, layers=2, heads=2, intermediate_size=128, vocab_size=512)
ROWS = Rows(4, 4, 6, 8)
LEARNING_RATE = 1e3
"""Large, so that the change of a parameter loses nothing to the rounding of its sum with the parameter."""
ONE_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}


def check_worker(device: str, small: bool) -> Iterator[Line]:
    """`ReplayActorWorker.update_actor_replay` on one rank, whose shapes are small in any case.

    Raises:
        subprocess.CalledProcessError: the worker failed; its output is above.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.gpu_check.verl_worker", device]
    environment = os.environ | ONE_RANK | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    for fields in json.loads(output.splitlines()[-1]):
        yield Line(**fields)


def main(device: str) -> list[Line]:
    """The worker's lines on this device."""
    platform.select("gpu" if device == "cuda" else "cpu")
    from verl.utils.distributed import initialize_global_process_group

    initialize_global_process_group()
    try:
        with tempfile.TemporaryDirectory() as folder:
            exact = save_model(Path(folder)).double()
            groups = stored_groups(exact, ROWS, exact.config.vocab_size)
            expected = reference.replay_update(exact, groups, ReplayConfig().importance, KL_COEF)
            dtypes = (torch.float32,) if device == "cpu" else (torch.float32, torch.bfloat16)
            return [line for dtype in dtypes for line in check(folder, device, dtype, groups, expected)]
    finally:
        torch.distributed.destroy_process_group()


def save_model(folder: Path) -> Any:
    """A small model with its tokenizer as a Hugging Face folder; its weights are bfloat16's, as float32."""
    texts = (text for pair in make_world(CONFIG).base_pairs for text in pair)
    tokenizer = train_tokenizer(texts, CONFIG.vocab_size)
    model = make_model(CONFIG, tokenizer).bfloat16().float()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return copy.deepcopy(model)


def check(
    folder: str, device: str, dtype: torch.dtype, groups: list[RolloutGroup], expected: reference.Expected
) -> Iterator[Line]:
    """Both branches of the update, each with a worker of its own."""
    for size in (len(groups) * groups[0].n, groups[0].n):
        gradient, metrics = replay_gradient(worker_config(folder, device, dtype, size), groups)
        what = f"{str(dtype).removeprefix('torch.')}, micro-batches of {size} rows"
        error = gradient_error(gradient, expected.gradient)
        yield Line("verl's worker", f"{what}: error of gradient", error, limit=LIMITS[dtype]["gradient"])
        loss = metrics["replay/pg_loss"] + KL_COEF * metrics["replay/kl_loss"]
        yield Line(
            "verl's worker", f"{what}: error of loss", abs(loss - expected.loss), limit=LIMITS[dtype]["loss"]
        )


def worker_config(folder: str, device: str, dtype: torch.dtype, micro_batch: int) -> DictConfig:
    """`actor_rollout_ref` for plain gradient descent."""
    actor = "actor_rollout_ref.actor"
    computed = {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]
    overrides = [
        f"platform={'gpu' if device == 'cuda' else 'cpu'}",
        "trainer.n_gpus_per_node=1",
        f"actor_rollout_ref.model.path={folder}",
        "++actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        f"{actor}.optim.optimizer=SGD",
        f"{actor}.optim.lr={LEARNING_RATE}",
        f"{actor}.optim.weight_decay=0",
        f"{actor}.optim.clip_grad=1e9",
        f"{actor}.ppo_micro_batch_size_per_gpu={micro_batch}",
        "data.train_files=none",
        "data.val_files=none",
    ]
    with initialize_config_module("recipe.rerule.config", version_base=None):
        config = compose("rerule_trainer", overrides)
    precision = {"param_dtype": computed, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    OmegaConf.update(config, f"{actor}.fsdp_config.mixed_precision", precision, force_add=True)
    OmegaConf.resolve(config)
    return config.actor_rollout_ref


def replay_gradient(
    config: DictConfig, groups: list[RolloutGroup]
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The gradient of one replay update by parameter name, and what the worker reports."""
    from verl.utils import tensordict_utils as tu

    from recipe.rerule.training.batches import replay_batch
    from recipe.rerule.training.worker import ReplayActorWorker

    worker = ReplayActorWorker(config=config, role="actor")
    worker.init_model()
    before = full_parameters(worker.actor.engine.module)
    rows = replay_batch(groups, ReplayConfig(), pad_token_id=0, temperature=1.0)
    metrics = tu.get(worker.update_actor_replay(rows), "metrics")
    after = full_parameters(worker.actor.engine.module)
    return {name: (before[name] - after[name]) / LEARNING_RATE for name in before}, metrics


def full_parameters(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Float64 copies of an FSDP2 module's whole parameters, on the processor."""
    parts = {
        name: getattr(value, "full_tensor", lambda value=value: value)()
        for name, value in module.named_parameters()
    }
    return {name: value.detach().cpu().double().clone() for name, value in parts.items()}


if __name__ == "__main__":
    print(json.dumps([asdict(line) for line in main(sys.argv[1])]))
