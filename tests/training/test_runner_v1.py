"""What sends the prompts of a run on V1, by the settings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from verl.trainer.ppo.v1 import AgentLoopManagerTQ

from recipe.rerule.platform import agent_loop
from recipe.rerule.training import runner_v1
from tests.training.made import composed


class Manager:
    """A manager of a user's own, named by module and class."""

    @classmethod
    def create(cls, **parts: Any) -> dict[str, Any]:
        return parts


def test_the_cpu_platforms_loops_are_left_to_v0(monkeypatch: pytest.MonkeyPatch) -> None:
    """They return padded batches, and V1's write into its queue."""
    config = composed(2, "platform=cpu")
    name = config.actor_rollout_ref.rollout.agent.agent_loop_manager_class
    assert name == runner_v1.CPU_LOOPS
    assert name.rpartition(".")[2] in vars(agent_loop)
    trainer: Any = SimpleNamespace(
        get_llm_client=lambda: "client",
        get_teacher_client=lambda: None,
        get_reward_handles=lambda: ["reward"],
    )
    monkeypatch.setattr(AgentLoopManagerTQ, "create", Manager.create)
    made = runner_v1._agent_loops(config, trainer)
    assert (made["reward_loop_worker_handles"], made["llm_client"]) == (["reward"], "client")
    assert config.transfer_queue.backend.SimpleStorage.num_data_storage_units == 1  # rows in one process
    own = "actor_rollout_ref.rollout.agent.agent_loop_manager_class=tests.training.test_runner_v1.Manager"
    config = composed(2, "platform=cpu", own)  # a manager of the user's own is taken
    assert runner_v1._agent_loops(config, trainer)["config"] is config
