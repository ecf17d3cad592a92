"""The Ray cluster of a stage-2 run: one of its own, or a running one whose address was given.

Without an address a run on one node starts its own, whatever else runs on the machine. An address is
`ray_kwargs.ray_init.address` or the environment's RAY_ADDRESS; several nodes always join a running cluster.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf, open_dict
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError

from recipe.rerule import platform, process
from recipe.rerule.process import Started
from recipe.rerule.training import local_paths

SOCKET_NUMBER = "VERL_ZMQ_BASE_TRAINER_RANK"
"""Environment variable with a number that verl's rollout engine adds to that of its weight socket."""
CPUS_OF_DEVICE, OTHER_CPUS = 3, 13
"""Processors in Ray's count, which is logical: those that verl asks for with a device, and those of all other
actors, of which each asks for one. 16 for one device, as config/platform/cpu.yaml has it."""
NODE_DEATH_SECONDS = 30.0
"""How long the cluster may take to notice that a node is gone, after processes on it are."""
GCS_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Environment variable: seconds without a gcs_server after which Ray ends a process, whatever it is doing."""
GCS_PATIENCE_SECONDS = 60.0
"""Ray's default of it."""
GCS_PING_SECONDS = 2.0
_PASSED_ON = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_SOCKETS = 100
"""Numbers of weight-transfer sockets that one run has to itself on a node: more than it has devices."""


LESS_MEMORY = (
    "if memory was used up, lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu and "
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu (without use_dynamic_bsz: the "
    "micro_batch_size_per_gpu of both), data.max_response_length or data.train_batch_size"
)
"""What to do where a process of the run may have been killed for its memory."""
GO_ON = "trainer.resume_mode=auto goes on from the last checkpoint"
_WITHOUT_A_WORD = "connection error code 2"
"""In Ray's words on a process that ended without telling it: killed, or crashed in native code."""


class DeathError(RuntimeError):
    """A machine or a process of the run died; the message says which, why and what to do."""


class GcsWatch:
    """Interrupts the main thread of the driver when Ray's gcs_server, the head of the cluster, is gone.

    Ray itself says nothing of it, and ends the driver after a minute, before the run's processes have ended.
    The watch waits a third of that time, since a server with a database of its own may come back.

    Attributes:
        death: one line on it; None while it is there.
    """

    def __init__(self) -> None:
        self.death: str | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, address: str) -> None:
        """Watch the server at `address` (host:port); to be called in the main thread."""
        self._former_handler = signal.signal(signal.SIGUSR1, self._interrupt)
        self._thread = threading.Thread(target=self._loop, args=(address,), name="rerule-gcs", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch; there may be none."""
        if self._thread is not None:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            self._over.set()
            self._thread.join()
            signal.signal(signal.SIGUSR1, self._former_handler)

    def _loop(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        patience = float(os.environ.get(GCS_PATIENCE, GCS_PATIENCE_SECONDS)) / 3
        answered = time.monotonic()
        while not self._over.wait(GCS_PING_SECONDS):
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=GCS_PING_SECONDS).close()
            except OSError as error:
                if time.monotonic() - answered > patience:
                    reason = error.strerror or error
                    self.death = (
                        f"Ray's gcs_server ({address}) was killed or cannot be reached: {reason}; "
                        f"{LESS_MEMORY}; {GO_ON}"
                    )
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                    return
            else:
                answered = time.monotonic()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt  # ray.get passes no other exception of a handler on


class TaskRunner:
    """What verl's `run_ppo` starts, in place of `ray.remote(runner)`; it does so right after `ray.init`.

    Attributes:
        handle: the started actor; None before.
        nodes: Ray's records of the nodes that were alive then, by id.
        gcs: the watch of the cluster's gcs_server from then on.
    """

    def __init__(self, runner: Any, when_connected: Callable[[], object]) -> None:
        self._runner = runner
        self._when_connected = when_connected
        self.handle: Any = None
        self.nodes: dict[str, dict[str, Any]] = {}
        self.gcs = GcsWatch()

    def options(self, **options: Any) -> TaskRunner:
        """As of a Ray actor class."""
        self._runner = self._runner.options(**options)
        return self

    def remote(self) -> Any:
        """As of a Ray actor class."""
        process.take_signals()  # ray.init has replaced the handlers
        self._when_connected()
        self.nodes = alive_nodes()
        self.gcs.start(ray.get_runtime_context().gcs_address)
        self.handle = self._runner.remote()
        return self.handle


@contextlib.contextmanager
def of_run(config: DictConfig, runner: type) -> Iterator[TaskRunner]:
    """Settle which cluster `run_ppo` uses; yields what it starts there.

    When the block is left, all processes of the run have ended and their temporary files are gone. Of a
    cluster that was joined, these are the run's own alone, and temporary files stay there.

    Raises DeathError: in place of Ray's error, where a machine or a process of the run died.
    """
    local_paths.make_absolute(config)
    started = Started()
    asked = copy.deepcopy(config.ray_kwargs)
    # The run's config.yaml says what the user asked for.
    task_runner = TaskRunner(
        ray.remote(runner), lambda: OmegaConf.update(config, "ray_kwargs", asked, merge=False)
    )
    with (
        process.scratch_folder() as temporary,
        started.followed(),
        process.last_act(started.kill),
        _sockets() as number,
    ):
        joins = choose(config)
        give_environment(config, number | ({} if joins else process.scratch_environment(temporary)))
        try:
            yield task_runner
        except (RayActorError, OutOfMemoryError) as error:
            # Of a dead node Ray is not sure at first; a process that died alone is known to be dead.
            unsure = isinstance(error, ActorUnavailableError) or len(task_runner.nodes) > 1
            dead = dead_node(task_runner.nodes, NODE_DEATH_SECONDS if unsure else 0)
            raise DeathError(dead or death("a process of the run", error)) from error
        except KeyboardInterrupt as error:
            if task_runner.gcs.death is None or process.signal_received():
                raise
            raise DeathError(task_runner.gcs.death) from error
        finally:
            task_runner.gcs.stop()
            started.remember()
            if task_runner.gcs.death is not None:
                started.kill()  # without a gcs_server Ray waits long for each of them
            elif joins and task_runner.handle is not None:
                ray.kill(task_runner.handle)
            with process.signals_kept():
                ray.shutdown()
            started.end()


def joined(config: DictConfig) -> str | None:
    """The address of the running cluster that a run joins, or "auto"; None where it starts its own."""
    address = config.ray_kwargs.ray_init.get("address") or os.environ.get("RAY_ADDRESS")
    if address is None and config.trainer.nnodes > 1:
        return "auto"
    return None if address in (None, "local") else str(address)


def queue_cpus(config: DictConfig) -> int:
    """Processors, in Ray's count, of V1's queue: its controller and its storage ask for one each."""
    storage = config.transfer_queue.backend
    units = storage.SimpleStorage.num_data_storage_units if storage.storage_backend == "SimpleStorage" else 0
    return 1 + units if config.trainer.use_v1 else 0


def choose(config: DictConfig) -> bool:
    """Settle the cluster in the configuration; returns whether it is one that runs already."""
    options = config.ray_kwargs.ray_init
    address = joined(config)
    if "RAY_ADDRESS" not in os.environ or address is None:
        with open_dict(options):
            # Without one ray.init would start a cluster where none runs.
            options.address = address or "local"
    if address is None:
        if options.num_cpus is None:
            # Ray would wait without end where it counts fewer processors than the actors ask for.
            devices = config.trainer.n_gpus_per_node
            counted = CPUS_OF_DEVICE * devices + OTHER_CPUS + queue_cpus(config)
            options.num_cpus = max(os.cpu_count() or 1, counted)
        return False
    if config.platform.name == "cpu":
        # The platform's own counts; Ray refuses any for a cluster that has its own.
        options.num_cpus = options.num_gpus = None
    return True


def give_environment(config: DictConfig, variables: Mapping[str, str]) -> None:
    """Have every worker of the run see the platform's environment and `variables`, wherever it starts.

    What the user set in `ray_kwargs.ray_init.runtime_env.env_vars` comes first.
    """
    offline = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    given = OmegaConf.select(config, "ray_kwargs.ray_init.runtime_env.env_vars") or {}
    merged = {**platform.environment(config.platform.name), **offline, **variables, **given}
    with open_dict(config.ray_kwargs.ray_init):
        OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.env_vars", merged, force_add=True)


@contextlib.contextmanager
def _sockets() -> Iterator[dict[str, str]]:
    """Environment with the run's own numbers for the sockets of weight transfer.

    verl names them by Ray's job id, which is the same in every cluster that a run starts for itself: two runs
    on one machine would send weights to each other's rollout engines.
    """
    first = secrets.randbelow(10**9) + 10**9
    try:
        yield {SOCKET_NUMBER: str(first * _SOCKETS)}
    finally:
        for path in Path("/tmp").glob(f"rl-colocate-zmq-*-rank-{first}[0-9][0-9].sock"):
            path.unlink(missing_ok=True)


def alive_nodes() -> dict[str, dict[str, Any]]:
    """Ray's records of the nodes that are alive, by id."""
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def dead_node(before: Mapping[str, Mapping[str, Any]], wait_seconds: float = 0.0) -> str | None:
    """One line that names a node of `before` that is dead now; None where none died within `wait_seconds`."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            dead = [node for node in ray.nodes() if not node["Alive"] and node["NodeID"] in before]
        except Exception as error:  # Ray's global state cannot be asked any more
            return f"the head node of the Ray cluster cannot be reached: {error}" if before else None
        if dead:
            node, message = dead[0], dead[0].get("DeathReasonMessage") or "no reason known"
            name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            return f"node {name} died: {' '.join(str(message).split())}; {GO_ON}"
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.5)


def death(name: str, error: BaseException) -> str:
    """One line on a process that Ray says is dead: which, why as far as Ray knows it, and what to do.

    Args:
        name: of the process, for messages.
        error: what a call to it raised. An `OutOfMemoryError` is none of a dead actor to Ray, although the
            actor is dead: its memory monitor has killed it.
    """
    text = " ".join(str(error).split())
    if isinstance(error, OutOfMemoryError):
        used = re.search(r"\(IP: ([^,)]+)[^)]*\) was (\S+ used / \S+ limit)", text)  # of a page of Ray's
        reason = f"{used[2]} on {used[1]}" if used else text
        return f"{name} was killed by Ray's memory monitor: {reason}; {LESS_MEMORY}; {GO_ON}"
    if _WITHOUT_A_WORD in text:
        known = dict(re.findall(r"(class_name|pid|ip): (\S+)", text))
        kind = known.get("class_name", "of an unknown kind").split(".")[-1]
        return (
            f"{name} ({kind}, process {known.get('pid', '?')} on {known.get('ip', '?')}) was killed or "
            f"crashed: it ended without a word, as when the system's out-of-memory killer ends it; "
            f"{LESS_MEMORY}; {GO_ON}"
        )
    return f"{name} died: {text}; {GO_ON}"
