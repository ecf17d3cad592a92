"""Which Ray cluster a run uses, what its workers find in their environment, and which paths are absolute.

And the health check of rollout engines, over a real HTTP server.
"""

import copy
import functools
import http.server
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from omegaconf import DictConfig, OmegaConf
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError

from recipe.rerule.platform import patches
from recipe.rerule.training import cluster, local_paths, watch
from recipe.rerule.training.watch import Watch, WorkerFailureError, engine_failure
from recipe.rerule.training.worker import own_socket
from tests.e2e.stack import free_address
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
        ("platform=gpu trainer.n_gpus_per_node=30 trainer.use_v1=true", None, False, "local", 112, None),
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


def test_the_platforms_environment_reaches_workers_and_the_users_comes_first(monkeypatch: Any) -> None:
    for name, value in {"VERL_PLATFORM": "cpu", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)
    own = "+ray_kwargs.ray_init.runtime_env.env_vars.OMP_WAIT_POLICY=active"
    settings = composed(2, "platform=cpu", own)
    cluster.give_environment(settings, {"TMPDIR": "/tmp/x"})
    expected = {"VERL_PLATFORM": "cpu", "HF_HUB_OFFLINE": "1"}
    expected |= {"OMP_WAIT_POLICY": "active", "TMPDIR": "/tmp/x"}
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
def test_a_dead_process_is_named_with_what_to_lower(error: Exception, begins: str, of_memory: bool) -> None:
    line = cluster.death("x", error)
    assert line.startswith(begins)
    assert ("data.train_batch_size" in line) == of_memory
    assert line.endswith("trainer.resume_mode=auto goes on from the last checkpoint")
    assert "\n" not in line


FILES = ("a.parquet", "b.parquet", "reward.py", "set.py", "loops.yaml", "tools.yaml", "phrases.txt")
FOLDERS = ("model", "tokenizer", "adapter", "global_step_3", "outputs")
REWARD, MODEL = "reward.custom_reward_function", "actor_rollout_ref.model"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is the home folder too, with all that the settings name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in FILES:
        (tmp_path / name).touch()
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    return tmp_path


def absolute(**values: Any) -> DictConfig:
    config = composed(2, "platform=cpu", *(f"+{key}={value}" for key, value in values.items()))
    local_paths.make_absolute(config)
    return config


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        (f"{MODEL}.path", "model", "model"),
        (f"{MODEL}.path", "~/model", "model"),
        (f"{MODEL}.tokenizer_path", "tokenizer", "tokenizer"),
        (f"{MODEL}.lora_adapter_path", "adapter", "adapter"),
        ("actor_rollout_ref.rollout.agent.agent_loop_config_path", "loops.yaml", "loops.yaml"),
        ("actor_rollout_ref.rollout.multi_turn.tool_config_path", "tools.yaml", "tools.yaml"),
        ("critic.model.tokenizer_path", "./tokenizer", "tokenizer"),
        ("data.val_files", "model/../b.parquet", "b.parquet"),
        ("data.custom_cls.path", "set.py", "set.py"),
        (f"{REWARD}.path", "reward.py", "reward.py"),
        (f"{REWARD}.path", "file://reward.py", "reward.py"),
        (f"{REWARD}.reward_kwargs.refusal_phrases", "phrases.txt", "phrases.txt"),
        ("reward.reward_manager.module.path", "reward.py", "reward.py"),
        ("trainer.resume_from_path", "global_step_3", "global_step_3"),
        # What is written need not be there.
        ("trainer.default_local_dir", "new/run", "new/run"),
        ("trainer.rollout_data_dir", "new/run", "new/run"),
        ("trainer.validation_data_dir", "new/run", "new/run"),
        # Names of models on the Hub, other file systems and texts stay.
        (f"{MODEL}.path", "org/name", None),
        (f"{MODEL}.path", "a.parquet", None),  # a file of the name of a model
        (f"{MODEL}.tokenizer_path", "gpt2", None),
        ("data.train_files", "hdfs://cluster/rows.parquet", None),
        (f"{REWARD}.path", "pkg://reward.score", None),
        ("trainer.project_name", "model", None),
        ("trainer.default_hdfs_dir", "hdfs://cluster/runs", None),
        (f"{MODEL}.path", "/model", None),
    ],
)
def test_which_settings_become_absolute(key: str, value: str, path: str | None, here: Path) -> None:
    found = absolute(**{key: value})
    assert OmegaConf.select(found, key) == (value if path is None else str(here / path))


def test_lists_what_refers_to_another_setting_and_nothing_else_changes(here: Path) -> None:
    config = absolute(**{"data.train_files": "[a.parquet,b.parquet]", f"{MODEL}.path": "model"})
    assert list(config.data.train_files) == [str(here / "a.parquet"), str(here / "b.parquet")]
    assert config.critic.model.path == str(here / "model")
    before, after = composed(2, "platform=cpu"), absolute()
    for key in ("trainer.default_local_dir", "global_profiler.save_path"):
        assert OmegaConf.select(after, key) == str(here / OmegaConf.select(before, key))
        OmegaConf.update(before, key, OmegaConf.select(after, key))
    assert OmegaConf.to_container(after, resolve=False) == OmegaConf.to_container(before, resolve=False)


def test_what_a_run_reads_on_this_machine(here: Path) -> None:
    """Each path once, by its first setting, without names of the Hub and what is not there."""
    words = [f"{MODEL}.path=model", f"{MODEL}.tokenizer_path=org/name", f"{REWARD}.path=reward.py"]
    config = composed(2, *words, "data.train_files=[a.parquet,b.parquet]", "data.val_files=b.parquet")
    before = copy.deepcopy(config)
    assert local_paths.read(config) == {
        f"{MODEL}.path": [str(here / "model")],
        "data.train_files": [str(here / "a.parquet"), str(here / "b.parquet")],
        f"{REWARD}.path": [str(here / "reward.py")],
    }
    assert config == before


@pytest.mark.parametrize("more", [[], ["+ray_kwargs.ray_init.address=auto"]], ids=["own", "joined"])
def test_every_run_gives_workers_absolute_paths(more: list[str], here: Path) -> None:
    config = composed(2, "platform=cpu", f"{MODEL}.path=model", *more)
    with cluster.of_run(config, object):
        assert config.actor_rollout_ref.model.path == str(here / "model")
        assert config.trainer.default_local_dir == str(here / "outputs" / "rerule")


@pytest.fixture(params=["health"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a server of files that has this one alone."""
    (tmp_path / request.param).touch()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def dead() -> str:
    """An address at which nothing answers."""
    return free_address()


@pytest.mark.parametrize(
    ("address", "said"), [("health", None), ("other", "its health check answers 404")], indirect=["address"]
)
def test_an_engine_is_asked_past_the_proxy(
    address: str, said: str | None, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine whose way out is a proxy, here a dead one, with engines' nodes not in no_proxy."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://{dead}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)  # made with the proxies of before
    assert engine_failure(address) == said


def watching(address: str, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """A watch of one engine and of no Ray actor, which looks twenty times a second."""
    monkeypatch.setattr(watch, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(watch, "NOTICE_SECONDS", 0.05)
    monkeypatch.setattr(watch, "alive_nodes", dict)
    monkeypatch.setattr(watch, "actors_of", lambda trainer, agent_loops: {})
    replicas = [SimpleNamespace(server_address=address)]
    trainer = SimpleNamespace(llm_server_manager=SimpleNamespace(get_replicas=lambda: replicas))
    return Watch(trainer, None)


def test_a_trainer_that_waits_is_interrupted_with_the_reason(dead: str, monkeypatch: Any) -> None:
    started, said = time.monotonic(), rf"rollout engine 0 \({dead}\) is dead: .*Connection refused"
    with pytest.raises(WorkerFailureError, match=said), watching(dead, monkeypatch):
        time.sleep(30)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        # Ray raises this of an actor that its memory monitor has killed, and it is no RayActorError.
        (OutOfMemoryError("21.9GB / 23.0GB"), "server 0 was killed by Ray's memory monitor: 21.9GB / 23.0GB"),
        (ActorDiedError(), "server 0 died: The actor died unexpectedly"),
        (ZeroDivisionError("of the watch"), "can no longer be watched: ZeroDivisionError: of the watch"),
    ],
)
def test_every_failure_of_a_call_to_an_actor_ends_the_run(
    failure: Exception, said: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = watching(address, monkeypatch)
    actor = SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda: "ping"))
    made._actors = {"server 0": actor}
    ray = Mock(wait=lambda pings, timeout: (pings, []), get=Mock(side_effect=failure))
    monkeypatch.setattr(watch, "ray", ray)
    with pytest.raises(WorkerFailureError, match=re.escape(said)), made:
        time.sleep(30)
    ray.kill.assert_called_once_with(actor)


def test_a_trainer_that_fails_before_the_watch_looks_ends_with_the_engines_death(
    dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = watching(dead, monkeypatch)
    monkeypatch.setattr(watch, "INTERVAL_SECONDS", 5.0)
    with pytest.raises(WorkerFailureError, match=r"rollout engine 0 .* is dead"), made:
        raise RuntimeError("no response has come")


def test_a_failure_of_another_kind_stays_what_it_is_and_the_handler_of_before_is_back(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, made = signal.getsignal(signal.SIGUSR1), watching(address, monkeypatch)
    with made:
        assert signal.getsignal(signal.SIGUSR1) != before
    with pytest.raises(RuntimeError, match="wrong"), watching(address, monkeypatch):
        raise RuntimeError("wrong")
    assert signal.getsignal(signal.SIGUSR1) == before
