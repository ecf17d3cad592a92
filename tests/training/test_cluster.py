"""Which Ray cluster a run uses, and what its workers find in their environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from ray.exceptions import OutOfMemoryError, RayActorError

from recipe.rerule.platform import patches
from recipe.rerule.training import cluster
from recipe.rerule.training.worker import own_socket
from tests.training.made import composed


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def ray_init(settings: Any) -> dict[str, Any]:
    return dict(OmegaConf.to_container(settings.ray_kwargs.ray_init, resolve=True))


ADDRESS = "+ray_kwargs.ray_init.address"


@pytest.mark.parametrize(
    ("words", "variable", "joined", "address", "cpus", "gpus"),
    [
        ("platform=cpu", None, False, "local", 16, 1),
        (f"platform=cpu {ADDRESS}=10.0.0.1:6379", None, True, "10.0.0.1:6379", None, None),
        ("platform=cpu trainer.nnodes=2", None, True, "auto", None, None),
        ("platform=cpu", "10.0.0.1:6379", True, None, None, None),  # left to Ray
        # A count that the user set is left on GPUs.
        (f"platform=gpu {ADDRESS}=auto ray_kwargs.ray_init.num_cpus=8", None, True, "auto", 8, None),
        ("platform=gpu ray_kwargs.ray_init.num_cpus=30", None, False, "local", 30, None),
        # With 30 devices verl asks for 90 processors, and Ray would wait for ever where it counts fewer.
        ("platform=gpu trainer.n_gpus_per_node=30", None, False, "local", 103, None),
        ("platform=gpu trainer.n_gpus_per_node=8", None, False, "local", 50, None),
    ],
)
def test_which_cluster_a_run_uses_and_with_what_counts(
    words: str,
    variable: str | None,
    joined: bool,
    address: str | None,
    cpus: int | None,
    gpus: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 50)
    if variable:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    settings = composed(2, *words.split())
    assert cluster.choose(settings) is joined
    found = ray_init(settings)
    assert [found.get(name) for name in ("address", "num_cpus", "num_gpus")] == [address, cpus, gpus]


def test_the_platforms_environment_reaches_workers_and_the_users_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"VERL_PLATFORM": "cpu", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)
    own = "+ray_kwargs.ray_init.runtime_env.env_vars.OMP_WAIT_POLICY=active"
    settings = composed(2, "platform=cpu", own)
    cluster.give_environment(settings, {"TMPDIR": "/tmp/x"})
    expected = {
        "VERL_PLATFORM": "cpu",
        "HF_HUB_OFFLINE": "1",
        "OMP_WAIT_POLICY": "active",
        "TMPDIR": "/tmp/x",
    }
    assert expected.items() <= ray_init(settings)["runtime_env"]["env_vars"].items()
    on_gpus = composed(2, "platform=gpu")
    cluster.give_environment(on_gpus, {})
    assert "VERL_PLATFORM" not in ray_init(on_gpus)["runtime_env"]["env_vars"]


@pytest.mark.full
def test_sender_and_receiver_of_weights_agree_on_the_runs_own_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl's receiver, against our sender; two runs whose Ray job ids are alike do not meet."""
    patches.install()
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

    receiver = vLLMColocateWorkerExtension.__new__(vLLMColocateWorkerExtension)
    receiver.local_rank, receiver.model_runner = 7, None
    monkeypatch.setenv("VERL_REPLICA_RANK", "2")
    monkeypatch.setenv("VERL_RAY_JOB_ID", "01000000")
    found = set()
    for _ in range(2):
        with cluster._sockets() as variables:
            (number,) = variables.values()
            monkeypatch.setenv(cluster.SOCKET_NUMBER, number)
            own = own_socket("ipc:///tmp/rl-colocate-zmq-01000000-replica-2-rank-7.sock", int(number))
            assert own == receiver._get_zmq_handle()
            found.add(own)
            Path(own.removeprefix("ipc://")).touch()
        assert not Path(own.removeprefix("ipc://")).exists()
    assert len(found) == 2


def test_a_node_that_died_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nodes(**alive: bool) -> None:
        of_all = {"NodeManagerHostname": "host", "NodeManagerAddress": "10.0.0.2"}
        of_all["DeathReasonMessage"] = "health check failed"
        made = [{"NodeID": name, "Alive": one, **of_all} for name, one in alive.items()]
        monkeypatch.setattr(cluster.ray, "nodes", lambda: made)

    nodes(a=True, b=True, old=False)
    before = cluster.alive_nodes()
    assert cluster.dead_node(before) is None
    nodes(a=True, b=False, old=False)
    assert cluster.dead_node(before) == (
        "node host (10.0.0.2) died: health check failed; trainer.resume_mode=auto goes on from the last "
        "checkpoint"
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


MONITOR = "x was killed by Ray's memory monitor: "


@pytest.mark.parametrize(
    ("error", "begins", "of_memory"),
    [
        (OutOfMemoryError(OF_MEMORY), f"{MONITOR}20.3GB used / 23.5GB limit on ", True),
        (OutOfMemoryError("other words"), f"{MONITOR}other words; ", True),
        (RayActorError(error_msg=KILLED), "x (WorkerDict, process 11197 on 10.0.0.2) was killed or", True),
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
