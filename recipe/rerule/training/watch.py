"""Watches the processes of a run, so that one that dies ends the run with the reason.

Without it a rollout engine killed during a weight sync leaves the trainer waiting for an acknowledgement that
never comes, and Ray has nothing to report since the waiting worker is alive.
"""

from __future__ import annotations

import signal
import threading
import time
import urllib.error
import urllib.request
from types import FrameType, TracebackType
from typing import Any

import ray
from ray.exceptions import RayError

from recipe.rerule.training.cluster import (
    GO_ON,
    LESS_MEMORY,
    NODE_DEATH_SECONDS,
    alive_nodes,
    dead_node,
    death,
)

INTERVAL_SECONDS = 5.0
ENGINE_FAILURES = 2
"""Refused health requests in a row after which an engine counts as dead."""
NOTICE_PINGS, NOTICE_SECONDS = 4, 0.5
"""How often, and how far apart, the actors are asked once more after the trainer has failed."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks nodes of the cluster, which a proxy of the environment (http_proxy) need not reach."""


class WorkerFailureError(RuntimeError):
    """A process of the run died; the message says which and why."""


class Watch:
    """Context manager around `trainer.fit()`, in the main thread.

    Where something has died the watch ends all workers, so that calls to them raise, and interrupts the main
    thread, since a trainer may wait without such a call: V1 asks its queue again and again for responses.

    Raises WorkerFailureError: on leaving, in place of what the trainer raised after its workers were ended.
    """

    def __init__(self, trainer: Any, agent_loops: Any) -> None:
        self._actors = actors_of(trainer, agent_loops)
        self._engines = {
            f"rollout engine {number}": replica.server_address
            for number, replica in enumerate(trainer.llm_server_manager.get_replicas())
        }
        self._pings: dict[str, Any] = {}
        self._failures = dict.fromkeys(self._engines, 0)
        self._nodes = alive_nodes()
        self._stop = threading.Event()
        self._reason: str | None = None
        self._thread = threading.Thread(target=self._loop, name="rerule-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._former_handler = signal.signal(signal.SIGUSR1, self._interrupt)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # the trainer has ended: there is nothing to interrupt
        try:
            self._end(error)
        finally:
            signal.signal(signal.SIGUSR1, self._former_handler)

    def _end(self, error: BaseException | None) -> None:
        self._stop.set()
        self._thread.join(timeout=INTERVAL_SECONDS)
        if error is None:
            return
        # What failed may have noticed a death before the watch came round.
        reason = self._reason or self._dead_soon()
        if reason is not None:
            # Of several nodes the one that is gone, whose processes were only what was noticed first.
            node = dead_node(self._nodes, NODE_DEATH_SECONDS) if len(self._nodes) > 1 else None
            raise WorkerFailureError(node or reason) from error

    def _loop(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            try:
                self._reason = self._dead_actor() or self._dead_engine()
            except Exception as error:  # a run must not go on without its watch
                self._reason = (
                    f"the run's processes can no longer be watched: {type(error).__name__}: {error}"
                )
            if self._reason is not None:
                print(f"run ended: {self._reason}", flush=True)
                for actor in self._actors.values():
                    ray.kill(actor)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                return

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        raise WorkerFailureError(self._reason)

    def _dead_soon(self) -> str | None:
        for _ in range(NOTICE_PINGS):
            if (reason := self._dead_actor() or self._dead_engine()) is not None:
                return reason
            time.sleep(NOTICE_SECONDS)
        return None

    def _dead_actor(self) -> str | None:
        for name, actor in self._actors.items():
            ping = self._pings.setdefault(name, actor.__ray_ready__.remote())
            done, _ = ray.wait([ping], timeout=0)
            if not done:
                continue  # busy: the call waits its turn, and fails at once when the process dies
            del self._pings[name]
            try:
                ray.get(ping)
            except RayError as error:  # not of an actor only: see `death`
                return death(name, error)
        return None

    def _dead_engine(self) -> str | None:
        for name, address in self._engines.items():
            failure = engine_failure(address)
            self._failures[name] = self._failures[name] + 1 if failure else 0
            if failure and self._failures[name] >= ENGINE_FAILURES:
                return f"{name} ({address}) is dead: {failure}; {LESS_MEMORY}; {GO_ON}"
        return None


def actors_of(trainer: Any, agent_loops: Any) -> dict[str, Any]:
    """The Ray actors of an initialised trainer, of the agent loops' manager and, on V1, of the queue.

    By a name for messages.
    """
    actors: dict[str, Any] = {}
    if trainer.config.trainer.use_v1:
        queue = trainer.config.transfer_queue
        actors["transfer queue"] = ray.get_actor("TransferQueueController", namespace="transfer_queue")
        if queue.backend.storage_backend == "SimpleStorage":
            for number in range(queue.backend.SimpleStorage.num_data_storage_units):
                handle = ray.get_actor(f"TransferQueueStorageUnit#{number}")
                actors[f"transfer queue storage {number}"] = handle
    kinds = {
        "actor worker": trainer.actor_rollout_wg.workers,
        "reward worker": trainer.reward_loop_manager.reward_loop_workers,
        "agent loop worker": agent_loops.agent_loop_workers,
        "rollout server": [
            server for replica in trainer.llm_server_manager.get_replicas() for server in replica.servers
        ],
    }
    for kind, handles in kinds.items():
        actors |= {f"{kind} {number}": handle for number, handle in enumerate(handles)}
    return actors


def engine_failure(address: str) -> str | None:
    """Why vLLM's /health at `address` (host:port) refuses; None when it answers or is merely slow."""
    try:
        with _DIRECT.open(f"http://{address}/health", timeout=INTERVAL_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        return f"its health check answers {error.code}"
    except OSError as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        return None if isinstance(cause, TimeoutError) else f"its health check fails: {cause}"
