"""Which Ray cluster a run uses, and what its workers find in their environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from ray.exceptions import OutOfMemoryError, RayActorError

from recipe.rerule.platform import patches
from recipe.rerule.training import cluster
from recipe.rerule.training.worker import own_socket


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def config(*overrides: str) -> DictConfig:
    with initialize_config_module("recipe.rerule.config", version_base=None):
        return compose("rerule_trainer", ["platform=cpu", *overrides])


def ray_init(settings: DictConfig) -> dict[str, Any]:
    return dict(OmegaConf.to_container(settings.ray_kwargs.ray_init, resolve=True))


ADDRESS = "+ray_kwargs.ray_init.address"


@pytest.mark.parametrize(
    ("overrides", "variable", "joined", "address", "cpus", "gpus"),
    [
        ([], None, False, "local", 16, 1),
        ([f"{ADDRESS}=10.0.0.1:6379"], None, True, "10.0.0.1:6379", None, None),
        (["trainer.nnodes=2"], None, True, "auto", None, None),
        ([], "10.0.0.1:6379", True, None, None, None),  # left to Ray
        # A count that the user set is left on GPUs.
        (["platform=gpu", f"{ADDRESS}=auto", "ray_kwargs.ray_init.num_cpus=8"], None, True, "auto", 8, None),
    ],
)
def test_which_cluster_a_run_uses_and_with_what_counts(
    overrides: list[str],
    variable: str | None,
    joined: bool,
    address: str | None,
    cpus: int | None,
    gpus: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if variable:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    settings = config(*overrides)
    assert cluster.choose(settings) is joined
    found = ray_init(settings)
    assert [found.get(name) for name in ("address", "num_cpus", "num_gpus")] == [address, cpus, gpus]


@pytest.mark.parametrize(("processors", "count"), [(4, 37), (96, 96)])
def test_a_cluster_of_ones_own_has_room_for_all_actors(
    processors: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 8 devices verl asks for 24 processors, and Ray would wait for ever where it counts fewer."""
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    settings = config("platform=gpu", "trainer.n_gpus_per_node=8")
    assert cluster.choose(settings) is False
    assert ray_init(settings)["num_cpus"] == count
    given = config("platform=gpu", "ray_kwargs.ray_init.num_cpus=30")
    assert cluster.choose(given) is False
    assert ray_init(given)["num_cpus"] == 30


def test_the_platforms_environment_reaches_workers_and_the_users_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    settings = config("+ray_kwargs.ray_init.runtime_env.env_vars.OMP_WAIT_POLICY=active")
    cluster.give_environment(settings, {"TMPDIR": "/tmp/x"})
    found = ray_init(settings)["runtime_env"]["env_vars"]
    assert found["VERL_PLATFORM"] == "cpu"
    assert found["HF_HUB_OFFLINE"] == "1"
    assert found["OMP_WAIT_POLICY"] == "active"
    assert found["TMPDIR"] == "/tmp/x"


def test_on_gpus_no_platform_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    settings = config("platform=gpu")
    cluster.give_environment(settings, {})
    assert "VERL_PLATFORM" not in ray_init(settings)["runtime_env"]["env_vars"]


@pytest.mark.full
@pytest.mark.parametrize("local_rank", [0, 7])
def test_sender_and_receiver_of_weights_agree_on_the_runs_own_socket(
    local_rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl's receiver, against our sender; two runs whose Ray job ids are alike do not meet."""
    patches.install()
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

    sender = f"ipc:///tmp/rl-colocate-zmq-01000000-replica-2-rank-{local_rank}.sock"
    receiver = vLLMColocateWorkerExtension.__new__(vLLMColocateWorkerExtension)
    receiver.local_rank, receiver.model_runner = local_rank, None
    monkeypatch.setenv("VERL_REPLICA_RANK", "2")
    monkeypatch.setenv("VERL_RAY_JOB_ID", "01000000")
    found = set()
    for _ in range(2):
        with cluster._sockets() as variables:
            monkeypatch.setenv(cluster.SOCKET_NUMBER, variables[cluster.SOCKET_NUMBER])
            own = own_socket(sender, int(os.environ[cluster.SOCKET_NUMBER]))
            assert own == receiver._get_zmq_handle()
            found.add(own)
            Path(own.removeprefix("ipc://")).touch()
        assert not Path(own.removeprefix("ipc://")).exists()
    assert len(found) == 2


def test_a_node_that_died_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nodes(**alive: bool) -> None:
        made = [
            {
                "NodeID": name,
                "Alive": one,
                "NodeManagerHostname": f"host-{name}",
                "NodeManagerAddress": "10.0.0.2",
            }
            | {"DeathReasonMessage": "" if one else "health check failed"}
            for name, one in alive.items()
        ]
        monkeypatch.setattr(cluster.ray, "nodes", lambda: made)

    nodes(a=True, b=True, old=False)
    before = cluster.alive_nodes()
    assert cluster.dead_node(before) is None
    nodes(a=True, b=False, old=False)
    line = cluster.dead_node(before) or ""
    assert line.startswith(
        "node host-b (10.0.0.2) died: health check failed; trainer.resume_mode=auto goes on"
    )


OF_MEMORY = (
    "1 worker(s) were killed due to low memory.\nMemory on the node (IP: 10.0.0.2, ID: 56) "
    "was 20.3GB used / 23.5GB limit (0.863430)\nOOM kill reason: Memory usage 22409244672B exceeded threshold"
)
"""The beginning of what Ray 2.60 says, which goes on for a page."""
KILLED = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: create_cls.<locals>.WorkerDict\n"
    "\tpid: 11197\n\tip: 10.0.0.2\nThe actor is dead because its worker process has died. Worker exit type: "
    "SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file."
)


@pytest.mark.parametrize(
    ("error", "begins", "of_memory"),
    [
        (
            OutOfMemoryError(OF_MEMORY),
            "x was killed by Ray's memory monitor: 20.3GB used / 23.5GB limit on ",
            True,
        ),
        (OutOfMemoryError("other words"), "x was killed by Ray's memory monitor: other words; ", True),
        (
            RayActorError(error_msg=KILLED),
            "x (WorkerDict, process 11197 on 10.0.0.2) was killed or crashed: ",
            True,
        ),
        (RayActorError(error_msg="its\nowner has died"), "x died: its owner has died; ", False),
    ],
)
def test_a_process_that_died_is_named_with_what_to_lower(
    error: Exception, begins: str, of_memory: bool
) -> None:
    line = cluster.death("x", error)
    assert line.startswith(begins)
    assert ("data.train_batch_size" in line) == of_memory
    assert line.endswith("trainer.resume_mode=auto goes on from the last checkpoint")
    assert "\n" not in line
