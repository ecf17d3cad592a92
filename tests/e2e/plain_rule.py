"""Runs stage 2 and records, each step, what the actor update of ours and of verl send to the workers.

python plain_rule.py CALLS_JSON [hydra overrides]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict
from verl import DataProto
from verl.trainer.main_ppo import run_ppo
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

from recipe.rerule import platform
from recipe.rerule.training import runner as runner_module
from recipe.rerule.training.runner import ReRULETaskRunner
from recipe.rerule.training.trainer import ReRULETrainer


class Recorder:
    """Stands before the worker group and keeps the name and data of each call; `answer` replaces the call."""

    def __init__(self, workers: Any, answer: Any = None) -> None:
        self.workers, self.answer, self.calls = workers, answer, []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.workers, name)
        if name.startswith("_") or not callable(attribute):
            return attribute

        def call(data: TensorDict) -> Any:
            self.calls.append((name, data.clone()))
            self.last = attribute(data) if self.answer is None else self.answer
            return self.last

        return call


class RecordingTrainer(ReRULETrainer):
    def _update_actor(self, batch: DataProto) -> DataProto:
        workers = self.actor_rollout_wg
        verl_batch = DataProto(batch.batch.clone(), dict(batch.non_tensor_batch), dict(batch.meta_info))
        ours = self.actor_rollout_wg = Recorder(workers)
        output = super()._update_actor(batch)
        verls = self.actor_rollout_wg = Recorder(workers, answer=ours.last)
        RayPPOTrainer._update_actor(self, verl_batch)
        self.actor_rollout_wg = workers
        self._keep(ours.calls, verls.calls)
        return output

    def _keep(self, ours: list, verls: list) -> None:
        step = {
            "ours": [name for name, _ in ours],
            "verl": [name for name, _ in verls],
            "same_data": all(same(a, b) for (_, a), (_, b) in zip(ours, verls, strict=True)),
        }
        path = Path(os.environ["CALLS_JSON"])
        steps = json.loads(path.read_text()) if path.exists() else []
        path.write_text(json.dumps([*steps, step]))


LABELS = {"data_source", "reward_model", "extra_info", "uid", "raw_prompt"}
"""Some of the columns that ours leaves out, since no worker reads them."""


def same(ours: TensorDict, verls: TensorDict) -> bool:
    """Whether ours holds what verl's does but for the columns with a value of their own for each row."""
    left_out = set(verls.keys()) - set(ours.keys())
    if set(ours.keys()) - set(verls.keys()) or not left_out >= LABELS:
        return False
    if any(not isinstance(verls.get(key), NonTensorStack) for key in left_out):
        return False
    return equal({key: (ours.get(key), verls.get(key)) for key in ours.keys()})  # noqa: SIM118


def equal(pairs: dict[str, tuple[Any, Any]]) -> bool:
    for a, b in pairs.values():
        if not isinstance(a, torch.Tensor):
            agree = str(a.tolist()) == str(b.tolist())
        elif a.is_nested:
            agree = torch.equal(a.values(), b.values())
        else:
            agree = torch.equal(a, b)
        if not agree:
            return False
    return True


class RecordingRunner(ReRULETaskRunner):
    def run(self, config: Any) -> None:
        runner_module.ReRULETrainer = RecordingTrainer
        super().run(config)


def main() -> None:
    os.environ["CALLS_JSON"] = sys.argv[1]
    with initialize_config_module("recipe.rerule.config", version_base=None):
        config = compose("rerule_trainer", sys.argv[2:])
    OmegaConf.resolve(config)
    platform.select("cpu")
    run_ppo(config, task_runner_class=ray.remote(RecordingRunner))
    ray.shutdown()


if __name__ == "__main__":
    main()
