"""verl's agent loop with fewer messages between processes: what counts where all of them share two cores.

For every response verl builds an agent loop, asks a load balancer for a server and sends a request to a
reward worker. Here one loop serves all responses of a worker, the only rollout server is asked for once, and
rewards are computed in the worker itself. Prompts, sampling, padding and the reward manager are verl's own.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import ray
from omegaconf import DictConfig
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopManager,
    AgentLoopWorker,
    DictConfigWrap,
    ToolListWrap,
)
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
from verl.workers.rollout.llm_server import LLMServerClient

from recipe.rerule.schema import AGENT_LOOP
from recipe.rerule.training.agent_loop import PromptAgentLoop

SHARED_LOOPS = {"single_turn_agent": SingleTurnAgentLoop, AGENT_LOOP: PromptAgentLoop}
"""Agent loops that keep nothing of a conversation, so that one serves every response."""


class LocalReward:
    """Stands where verl expects the handle of a reward worker: computes in the calling process."""

    def __init__(self, config: DictConfig) -> None:
        self._config = config

    @property
    def compute_score(self) -> LocalReward:
        return self

    async def remote(self, data: Any) -> dict[str, Any]:
        return await self._worker.compute_score(data)

    @cached_property
    def _worker(self) -> RewardLoopWorker:
        # At the first response, not earlier: it keeps the event loop of whoever builds it.
        return RewardLoopWorker(self._config)


class OneServerClient(LLMServerClient):
    """Client of a run with one rollout server: nothing to balance, so it is asked for once."""

    _server: tuple[str, Any] | None = None

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        if self._server is None:
            self._server = await super()._acquire_server(request_id, **extra)
        return self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        """Kept for the run."""


class CpuAgentLoopWorker(AgentLoopWorker):
    """One for all responses of a batch; see the top of this module."""

    def __init__(self, config: DictConfig, llm_client: LLMServerClient, *others: Any) -> None:
        super().__init__(config, llm_client, *others)
        self._loops: dict[str, SingleTurnAgentLoop] = {}
        self.reward_loop_worker_handles: list[Any] | None
        if _replicas(config) == 1 and type(llm_client) is LLMServerClient:
            self.llm_client = OneServerClient(config, llm_client._load_balancer)
        if self.reward_loop_worker_handles is not None and not config.reward.reward_model.enable:
            self.reward_loop_worker_handles = [LocalReward(config)]

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: dict[str, Any], *, agent_name: str, **kwargs: Any
    ) -> Any:
        if agent_name not in SHARED_LOOPS or self.rollout_config.trace.get("backend"):
            return await super()._run_agent_loop(sampling_params, trajectory, agent_name=agent_name, **kwargs)
        kwargs.pop("trace", None)
        if agent_name not in self._loops:
            self._loops[agent_name] = self._build_loop(SHARED_LOOPS[agent_name])
        output = await self._loops[agent_name].run(sampling_params, **kwargs)
        return await self._agent_loop_postprocess(output, trajectory["validate"], **kwargs)

    def _build_loop(self, loop_class: type[SingleTurnAgentLoop]) -> SingleTurnAgentLoop:
        return loop_class(
            trainer_config=DictConfigWrap(self.config),
            server_manager=self.llm_client,
            tokenizer=self.tokenizer,
            processor=self.processor,
            hf_model_type=self.hf_model_type,
            dataset_cls=self.dataset_cls,
            data_config=DictConfigWrap(self.config.data),
            tools=ToolListWrap(self.tools),
        )


class CpuAgentLoopManager(AgentLoopManager):
    """Named in `rollout.agent.agent_loop_manager_class` by config/platform/cpu.yaml."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.agent_loop_workers_class = ray.remote(CpuAgentLoopWorker)
        super().__init__(*args, **kwargs)


def _replicas(config: DictConfig) -> int:
    rollout = config.actor_rollout_ref.rollout
    devices = config.trainer.n_gpus_per_node * config.trainer.nnodes
    return devices // (rollout.tensor_model_parallel_size * rollout.data_parallel_size)
