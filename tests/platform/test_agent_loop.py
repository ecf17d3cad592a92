"""The CPU platform's agent loop: rewards in the worker, one server asked for once."""

from __future__ import annotations

import asyncio
from typing import Any

from recipe.rerule.platform import agent_loop


class Balancer:
    """Counts what a client asks of verl's load balancer."""

    def __init__(self) -> None:
        self.acquired: list[str] = []

    @property
    def require_acquire_fields(self) -> Answer:
        return Answer(lambda: [])

    require_release_fields = require_acquire_fields

    @property
    def acquire_server(self) -> Answer:
        def acquire(request_id: str) -> tuple[str, str]:
            self.acquired.append(request_id)
            return "address", "server"

        return Answer(acquire)


class Answer:
    """A method of a Ray actor."""

    def __init__(self, method: Any) -> None:
        self._method = method

    async def remote(self, **arguments: Any) -> Any:
        return self._method(**arguments)


def test_a_single_server_is_asked_for_once() -> None:
    balancer = Balancer()
    client = agent_loop.OneServerClient(config=None, load_balancer_handle=balancer)

    async def acquire_three() -> list[tuple[str, Any]]:
        return [await client._acquire_server(f"request {number}") for number in range(3)]

    assert asyncio.run(acquire_three()) == [("address", "server")] * 3
    assert balancer.acquired == ["request 0"]
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
