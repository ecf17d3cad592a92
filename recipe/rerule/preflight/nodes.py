"""Whether the nodes of a Ray cluster that a run joins can carry it: looked at before anything starts.

Ray itself waits without a word where a node has too few devices or processors, and a run whose nodes write
to different disks would find it out at its first checkpoint. A run that starts its own cluster has one node,
which needs no such look.
"""

from __future__ import annotations

import contextlib
import copy
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from recipe.rerule import io, process
from recipe.rerule.preflight import seen_files
from recipe.rerule.training import cluster, local_paths

REACH_SECONDS = 10.0
"""How long the cluster's address may take to answer; Ray itself tries for two minutes."""
FREE_SECONDS = 10.0
"""How long Ray may take to count what a run that has just ended used as free."""
LOOK_SECONDS = 120.0
"""How long a node may take to look at the files; it has to start a process for that."""
_DOCS = "see docs/running.md#several-nodes"


@dataclass(frozen=True)
class Node:
    """A node of the cluster.

    Attributes:
        name: host name and address.
        total: its resources by Ray's names; free: those that nobody uses.
    """

    id: str
    name: str
    total: Mapping[str, float]
    free: Mapping[str, float]


@dataclass(frozen=True)
class Wanted:
    """What a run wants of a cluster.

    Attributes:
        nodes: trainer.nnodes; devices: trainer.n_gpus_per_node; device: Ray's name of one.
        cpus: of a node.
        queue_cpus: of V1's queue, on any node.
    """

    nodes: int
    devices: int
    device: str
    cpus: int
    queue_cpus: int


def check(config: DictConfig) -> None:
    """Refuse a cluster that the run of a checked stage-2 configuration would join and that cannot carry it.

    Where nothing is refused, the run folder is there afterwards; otherwise nothing is left behind.

    Raises ValueError: it cannot be joined, has too few devices or processors, or a node does not share the
    run folder, or would read another model or other rows.
    """
    address = cluster.joined(config)
    if address is not None:
        config = copy.deepcopy(config)
        local_paths.make_absolute(config)
        with _member(config, address):
            _require_room(wanted_of(config), address)
            _require_same_files(config)
    elif config.trainer.nnodes > 1:
        raise ValueError(
            f"trainer.nnodes is {config.trainer.nnodes}, but with ray_kwargs.ray_init.address=local the run "
            f"starts a cluster of one node; give the address of a running cluster; {_DOCS}"
        )


def wanted_of(config: DictConfig) -> Wanted:
    """What verl's resource pools, rollout servers and queue ask of the cluster."""
    from verl.plugin.platform import get_platform
    from verl.single_controller.ray.base import ResourcePoolManager

    devices = config.trainer.n_gpus_per_node
    return Wanted(
        nodes=config.trainer.nnodes,
        devices=devices,
        device=get_platform().ray_resource_name(),
        # Ray wants one more to be free while a rollout server, which is bound to its node, is started.
        cpus=ResourcePoolManager.max_colocate_count * devices + 1,
        queue_cpus=cluster.queue_cpus(config),
    )


def lack(wanted: Wanted, resources: Sequence[Mapping[str, float]]) -> str | None:
    """What a run lacks on nodes with these resources by Ray's names; None where nothing."""
    fits = sum(
        int(min(one.get(wanted.device, 0) // wanted.devices, one.get("CPU", 0) // wanted.cpus))
        for one in resources
    )
    if fits < wanted.nodes:
        return f"room for {fits} of the run's {wanted.nodes} nodes"
    needed = wanted.nodes * wanted.cpus + wanted.queue_cpus
    processors = sum(one.get("CPU", 0) for one in resources)
    return f"{processors:g} of the {needed} processors that the run needs" if processors < needed else None


def _require_room(wanted: Wanted, address: str) -> None:
    """Raises ValueError: a node lacks devices or processors, or others use them."""
    deadline = time.monotonic() + FREE_SECONDS
    while True:
        nodes = _nodes()
        never = lack(wanted, [node.total for node in nodes])
        missing = never or lack(wanted, [node.free for node in nodes])
        if missing is None:
            return
        if never or time.monotonic() >= deadline:
            break
        time.sleep(0.5)

    def free(node: Node, name: str) -> str:
        return f"{node.free.get(name, 0):g} of {node.total.get(name, 0):g}"

    there = ", ".join(
        f"{free(node, wanted.device)} devices free and {free(node, 'CPU')} processors free on {node.name}"
        for node in nodes
    )
    advice = "start Ray with more, or ask for less" if never else "wait for those who use the rest"
    raise ValueError(
        f"the Ray cluster at {address} has {missing}: trainer.nnodes is {wanted.nodes}, and a node needs "
        f"{wanted.devices} free devices (trainer.n_gpus_per_node) and {wanted.cpus} free processors; "
        f"there are {there}; {advice}; {_DOCS}"
    )


def _require_same_files(config: DictConfig) -> None:
    """Raises ValueError: a node sees another run folder, model or other rows than this machine."""
    folder, paths = config.trainer.default_local_dir, local_paths.read(config)
    asked = [path for of_key in paths.values() for path in of_key]
    try:
        with seen_files.word(folder) as (place, text):
            nodes, looks = _nodes(), []
            for node in nodes:
                there = NodeAffinitySchedulingStrategy(node.id, soft=False)
                look = ray.remote(seen_files.look).options(
                    num_cpus=0, max_retries=0, scheduling_strategy=there
                )
                looks.append(look.remote(place, text, node.id, asked))
            here = {path: seen_files.digests(path) for path in asked}
            for node, look in zip(nodes, looks, strict=True):
                require_same(paths, here, node, _answer(node, look), folder, place / node.id, text)
    except OSError as error:
        raise ValueError(
            f"trainer.default_local_dir is {folder}, and nothing can be written there ({error.strerror})"
        ) from error


def require_same(
    paths: Mapping[str, Sequence[str]],
    here: Mapping[str, Mapping[str, str]],
    node: Node,
    seen: seen_files.Seen,
    folder: str,
    answer: Path,
    text: str,
) -> None:
    """Hold what a node sees to what this machine sees.

    Args:
        paths: by setting, what the run reads; here: of each path, its digests on this machine.
        folder: of the run; answer: the file there in which the node has left `text`.

    Raises ValueError: naming the setting, the path, the node and the difference.
    """
    given = f"trainer.default_local_dir is {folder}, and node {node.name}"
    if seen.write_error is not None:
        raise ValueError(f"{given} cannot write there ({seen.write_error}); {_DOCS}")
    if not seen.shares or not seen_files.is_seen(answer, text):
        raise ValueError(
            f"{given} sees another folder there than this machine; give one on a file system that all nodes "
            f"share; {_DOCS}"
        )
    for key, of_key in paths.items():
        for path in of_key:
            problem = seen_files.difference(here[path], seen.digests[path])
            if problem is not None:
                raise ValueError(
                    f"{key} is {path}, and node {node.name} {problem} there; give what all nodes share, or "
                    f"copy it to the same place on all of them; {_DOCS}"
                )


def _answer(node: Node, look: Any) -> seen_files.Seen:
    try:
        seen: seen_files.Seen = ray.get(look, timeout=LOOK_SECONDS)
    except GetTimeoutError:
        said = f"did not say within {LOOK_SECONDS:.0f} s what it sees of the run's files"
        raise ValueError(f"node {node.name} {said}; {_DOCS}") from None
    except RayError as error:
        # Ray puts a page around what a worker raised.
        line = [line.strip() for line in f"{type(error).__name__}\n{error}".splitlines() if line.strip()][-1]
        raise ValueError(
            f"node {node.name} cannot run this project's code: {line}; install the same at the same place "
            f"on all nodes; {_DOCS}"
        ) from error
    return seen


@contextlib.contextmanager
def _member(config: DictConfig, address: str) -> Iterator[None]:
    """This process as a member of the cluster, as the run will be.

    Raises ValueError: it cannot be joined.
    """
    _reach(address)
    cluster.choose(config)
    cluster.give_environment(config, {})
    options: Any = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    try:
        ray.init(**{**options, "log_to_driver": False, "logging_level": "ERROR"})
    except (RayError, OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"the Ray cluster at {address} cannot be joined: {io.describe(error)}") from error
    finally:
        process.take_signals()  # ray.init has replaced the handlers
    try:
        yield
    finally:
        with process.signals_kept():
            ray.shutdown()


def _reach(address: str) -> None:
    """Raises ValueError: nothing answers at the address of a cluster, or none was started here."""
    from ray._private.services import canonicalize_bootstrap_address_or_die

    if address == "auto":
        try:
            address = str(canonicalize_bootstrap_address_or_die("auto"))
        except ConnectionError as error:
            found = "several Ray clusters run" if "multiple" in str(error) else "no Ray cluster runs"
            raise ValueError(
                f"{found} on this machine; start one with ray start, or give its address in "
                f"ray_kwargs.ray_init.address; {_DOCS}"
            ) from None
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in host:  # of Ray's own kinds, such as ray://
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except OSError as error:
        raise ValueError(
            f"no Ray cluster answers at {address} ({error.strerror or error}); start it with ray start, or "
            f"give its address in ray_kwargs.ray_init.address; {_DOCS}"
        ) from None


def _nodes() -> list[Node]:
    """The nodes on which a process of a run may be placed, in the order of their addresses."""
    free = ray._private.state.available_resources_per_node()
    return [
        Node(
            id=key,
            name=f"{record['NodeManagerHostname']} ({record['NodeManagerAddress']})",
            total=record["Resources"],
            free=free.get(key, {}),
        )
        for key, record in sorted(
            cluster.alive_nodes().items(), key=lambda one: str(one[1]["NodeManagerAddress"])
        )
        if record["Resources"].get("CPU", 0) > 0
    ]
