"""Agent loops of platform=cpu in which each response has a seed of its own, for runs that are to be compared.

The engine's own noise depends on which responses it makes together. A run is told to use them with
`actor_rollout_ref.rollout.agent.agent_loop_manager_class=seeded_loop.SeededManager`, and finds this file
through PYTHONPATH.
"""

from __future__ import annotations

import hashlib
from typing import Any

import ray

from recipe.rerule.platform.agent_loop import CpuAgentLoopManager, CpuAgentLoopWorker


class SeededWorker(CpuAgentLoopWorker):
    """Gives each response a seed that follows from the step, the prompt and the number of the response."""

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: dict[str, Any], **row: Any
    ) -> Any:
        place = f"{trajectory['step']} {trajectory['sample_index']} {trajectory['rollout_n']}"
        seed = int.from_bytes(hashlib.sha256(place.encode()).digest()[:4], "big")
        return await super()._run_agent_loop({**sampling_params, "seed": seed}, trajectory, **row)


class SeededManager(CpuAgentLoopManager):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.agent_loop_workers_class = ray.remote(SeededWorker)
