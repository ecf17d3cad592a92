"""The CPU platform's agent loop: rewards in the worker, one server asked for once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

from recipe.rerule.platform import agent_loop
from recipe.rerule.schema import AGENT_LOOP


def test_a_single_server_is_asked_for_once() -> None:
    acquired: list[str] = []

    async def fields(**arguments: Any) -> list[str]:
        return []

    async def acquire(request_id: str) -> tuple[str, str]:
        acquired.append(request_id)
        return "address", "server"

    actor = SimpleNamespace(
        require_acquire_fields=SimpleNamespace(remote=fields),
        require_release_fields=SimpleNamespace(remote=fields),
        acquire_server=SimpleNamespace(remote=acquire),
    )
    client = agent_loop.OneServerClient(config=None, load_balancer_handle=actor)

    async def acquire_three() -> list[tuple[str, Any]]:
        return [await client._acquire_server(f"request {number}") for number in range(3)]

    assert asyncio.run(acquire_three()) == [("address", "server")] * 3
    assert acquired == ["request 0"]
    client._release_server("address", request_id="request 0")  # verl releases after each response


def test_rewards_are_computed_in_the_calling_process(monkeypatch: Any) -> None:
    """verl awaits `handle.compute_score.remote(data)`, of a reward worker built from the configuration."""

    class Worker:
        def __init__(self, config: str) -> None:
            self.config = config

        async def compute_score(self, data: str) -> dict[str, str]:
            return {"config": self.config, "data": data}

    monkeypatch.setattr(agent_loop, "RewardLoopWorker", Worker)
    handle = agent_loop.LocalReward("configuration")
    assert asyncio.run(handle.compute_score.remote("row")) == {"config": "configuration", "data": "row"}


def worker() -> agent_loop.CpuAgentLoopWorker:
    """Built without verl's `__init__`, which loads a model's settings; nothing looks into its parts."""
    bare = object.__new__(agent_loop.CpuAgentLoopWorker)
    bare._loops = {}
    bare.rollout_config, bare.config = SimpleNamespace(trace={}), SimpleNamespace(data=None)
    bare.llm_client, bare.tools = "server", []
    bare.tokenizer = bare.processor = bare.hf_model_type = bare.dataset_cls = None

    async def postprocess(output: Any, validate: bool, **row: Any) -> tuple[Any, ...]:
        return output, validate, row

    bare._agent_loop_postprocess = postprocess
    return bare


@pytest.mark.parametrize("name", ["single_turn_agent", AGENT_LOOP])
def test_one_loop_serves_every_response(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    class Loop:
        def __init__(self, **parts: Any) -> None:
            built.append(parts["server_manager"])

        async def run(self, sampling_params: dict[str, Any], **row: Any) -> tuple[Any, ...]:
            return sampling_params, row

    monkeypatch.setitem(agent_loop.SHARED_LOOPS, name, Loop)
    one = worker()

    async def three() -> list[Any]:
        runs = (one._run_agent_loop({"n": n}, {"validate": True}, agent_name=name, row=n) for n in range(3))
        return await asyncio.gather(*runs)

    assert asyncio.run(three()) == [(({"n": n}, {"row": n}), True, {"row": n}) for n in range(3)]
    assert built == ["server"]


def test_any_other_agent_loop_is_left_to_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    async def verls(self: Any, *_: Any, agent_name: str, **row: Any) -> str:
        return agent_name

    monkeypatch.setattr(AgentLoopWorker, "_run_agent_loop", verls)
    assert asyncio.run(worker()._run_agent_loop({}, {}, agent_name="tool_agent")) == "tool_agent"
