"""Which process holds the trainer, and what sends the prompts, by the settings."""

from __future__ import annotations

from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig
from verl.trainer.ppo.v1 import AgentLoopManagerTQ

from recipe.rerule import main
from recipe.rerule.platform import agent_loop
from recipe.rerule.training import runner_v1
from recipe.rerule.training.runner import ReRULETaskRunner
from recipe.rerule.training.runner_v1 import ReRULETaskRunnerV1
from recipe.rerule.training.worker import ReplayActorWorker


class Trainer:
    """What the manager of the agent loops is given."""

    def get_llm_client(self) -> str:
        return "client"

    def get_teacher_client(self) -> None:
        return None

    def get_reward_handles(self) -> list[str]:
        return ["reward"]


class Manager:
    """A manager of a user's own, named by module and class."""

    @classmethod
    def create(cls, **parts: Any) -> dict[str, Any]:
        return parts


def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("recipe.rerule.config", version_base=None):
        return compose("rerule_trainer", ["platform=cpu", *overrides])


def test_the_setting_chooses_the_trainer_and_the_actor_worker_has_the_replay_update() -> None:
    for overrides, kind in (([], ReRULETaskRunner), (["trainer.use_v1=true"], ReRULETaskRunnerV1)):
        assert main._task_runner(composed(*overrides)) is kind
    runner = ReRULETaskRunner()
    found, _ = runner.add_actor_rollout_worker(composed("actor_rollout_ref.actor.strategy=fsdp2"))
    (role,) = runner.role_worker_mapping
    assert found is ReplayActorWorker
    assert runner.role_worker_mapping[role].__ray_actor_class__ is ReplayActorWorker


def test_the_cpu_platforms_loops_are_left_to_v0(monkeypatch: pytest.MonkeyPatch) -> None:
    """They return padded batches, and V1's write into its queue."""
    config = composed()
    name = config.actor_rollout_ref.rollout.agent.agent_loop_manager_class
    assert name == runner_v1.CPU_LOOPS
    assert name.rpartition(".")[2] in vars(agent_loop)
    monkeypatch.setattr(AgentLoopManagerTQ, "create", Manager.create)
    made = runner_v1._agent_loops(config, Trainer())  # type: ignore[arg-type]
    assert made["reward_loop_worker_handles"] == ["reward"]
    assert made["llm_client"] == "client"
    assert config.transfer_queue.backend.SimpleStorage.num_data_storage_units == 1  # rows in one process
    own = "actor_rollout_ref.rollout.agent.agent_loop_manager_class=tests.training.test_runner_v1.Manager"
    config = composed(own)  # a manager of the user's own is taken
    assert runner_v1._agent_loops(config, Trainer())["config"] is config  # type: ignore[arg-type]
