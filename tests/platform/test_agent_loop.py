"""The CPU platform's agent loop: one for all responses of a worker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

from recipe.rerule.platform import agent_loop
from recipe.rerule.schema import AGENT_LOOP


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
