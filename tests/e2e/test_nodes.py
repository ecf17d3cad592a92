"""Stage 2 in a Ray cluster of one and of two nodes of one machine with a device each.

examples/two_nodes.sh starts the nodes, or they are started as docs/running.md says, each with an address of
the loopback network. Processors, memory and disk are shared, so that networks, separate disks and machines
that lose their power stay untested.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recipe.rerule.runs import checkpoints
from recipe.rerule.runs.history import read_metrics
from tests.e2e.stack import Command, free_address, stage2_arguments

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(1200)]

HEAD, OTHER = "127.0.0.2", "127.0.0.3"
TRIES = 3
OF_A_RUN = ("WorkerDict", "vLLM", "EngineCore")
"""Parts of the names of a stage 2's processes on a node."""


class Nodes:
    """A cluster of a head node with 16 processors and one device in Ray's count, and what is added to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = free_address(HEAD)
        port = self.address.rpartition(":")[2]
        self.temporary = Path(f"/tmp/nodes-{port}")  # Ray's socket paths have to be short
        self.started: list[Command] = []
        options = [f"--port={port}", "--include-dashboard=false", f"--temp-dir={self.temporary}"]
        self.head = self.start(HEAD, "--head", *options)

    def start(self, ip: str, *options: str) -> Command:
        """A node that runs. On a machine that is busy for 30 s Ray gives up, and is asked again."""
        ray = str(Path(sys.executable).with_name("ray"))
        counts = ["--num-cpus=16", "--num-gpus=1", f"--node-ip-address={ip}"]
        # As another machine would have it: nothing of this process's environment, another folder.
        environment = {name: os.environ[name] for name in ("PATH", "HOME")} | {"RAY_AUTH_MODE": "disabled"}
        for _ in range(TRIES):
            log = self._folder / f"node{len(self.started)}.txt"
            node = Command([ray, "start", "--block", *counts, *options], log, cwd="/", env=environment)
            self.started.append(node)
            while node.process.poll() is None and "Ray runtime started" not in node.output:
                time.sleep(0.2)
            if node.process.poll() is None:
                return node
        pytest.fail(log.read_text())


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A head node alone. The nodes end as a user ends them, the head last; then whatever is left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        cluster = Nodes(tmp_path_factory.mktemp("nodes"))
        yield cluster
        for node in reversed(cluster.started):
            node.descendants()
            node.process.terminate()
            node.wait(60)
            node.end()
        shutil.rmtree(cluster.temporary, ignore_errors=True)


class Script(Command):
    """examples/two_nodes.sh on a node with 16 processors and one device in Ray's count."""

    def __init__(self, ip: str, head: str, folder: Path, *words: str, options: str = "", **variables: str):
        settings = {
            "HEAD": head,
            "RAY_OPTIONS": f"--num-cpus=16 --num-gpus=1 {options}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "SLURM_JOB_ID": "",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",
        }
        log = folder / f"{ip}.txt"
        script = ["examples/two_nodes.sh", *words]
        super().__init__(script, log, executable=shutil.which("bash"), env=os.environ | settings | variables)


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[..., Script]]:
    """script(ip, *words): the script on a node of a cluster whose head is at HEAD."""
    address, started = free_address(HEAD), []
    temporary = Path(f"/tmp/script-{address.rpartition(':')[2]}")

    def start(ip: str, *words: str, **variables: str) -> Script:
        options = f"--temp-dir={temporary}" if ip == HEAD else f"--node-ip-address={ip}"
        started.append(Script(ip, address, tmp_path, *words, options=options, **variables))
        return started[-1]

    yield start
    for one in started:
        one.end()
    shutil.rmtree(temporary, ignore_errors=True)


def test_the_script_trains_on_two_nodes_and_ends_them(
    script: Callable[..., Script], micro_world: Path, tmp_path: Path
) -> None:
    run_folder = tmp_path / "run"
    other = script(OTHER)
    training = stage2_arguments(micro_world, run_folder, "trainer.nnodes=2", "trainer.total_training_steps=2")
    first = script(HEAD, "python", "-m", "recipe.rerule.main", *training)
    first.wait_until(lambda: all(len(node.named("ray::WorkerDict")) == 1 for node in (first, other)))
    first.finish()
    assert checkpoints.newest_complete(run_folder) == 2
    assert read_metrics(run_folder).keys() == {1, 2}
    assert other.wait(60) == 0, other.output
    for node in (first, other):
        node.assert_all_have_ended(10)


def test_a_run_in_somebody_elses_cluster_leaves_nothing_running(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, nodes: Nodes
) -> None:
    run_folder = tmp_path / "joined"
    joined = command(
        *("-m", "recipe.rerule.main"),
        *stage2_arguments(micro_world, Path(os.path.relpath(run_folder)), "trainer.total_training_steps=50"),
        f"+ray_kwargs.ray_init.address={nodes.address}",
    )
    joined.wait_until(lambda: "step 2/50" in joined.output)
    assert "Connecting to existing Ray cluster" in joined.output
    assert not any("raylet" in name for name in joined.seen)
    assert read_metrics(run_folder).keys() in ({1}, {1, 2})  # verl logs a step after it has told it
    joined.process.send_signal(signal.SIGTERM)
    assert joined.wait(40) == 143
    nodes.head.wait_until(lambda: not any(map(nodes.head.named, OF_A_RUN)), limit=30)
    assert nodes.head.process.poll() is None


def test_a_run_on_two_nodes_ends_when_one_dies(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, nodes: Nodes
) -> None:
    """All processes of the other node are killed in mid-run."""
    run_folder = tmp_path / "run"
    more = f"trainer.nnodes=2 +ray_kwargs.ray_init.address={nodes.address} trainer.save_freq=1"
    more += " trainer.resume_mode=auto"
    arguments = ["-m", "recipe.rerule.main", *stage2_arguments(micro_world, run_folder, *more.split())]
    other = nodes.start(OTHER, f"--address={nodes.address}")
    run = command(*arguments, "trainer.total_training_steps=500")
    # Not by the output: of lines that are alike Ray prints one in some seconds.
    run.wait_until(lambda: (checkpoints.newest_complete(run_folder) or 0) >= 2)
    for node in (nodes.head, other):
        assert len(node.named("ray::WorkerDict")) == 1
    other.end()
    assert run.wait(60) == 1
    assert run.error().startswith("node ")
    assert f" ({OTHER}) died: " in run.error()
    assert "trainer.resume_mode=auto goes on from the last checkpoint" in run.error()
