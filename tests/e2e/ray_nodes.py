"""Two Ray nodes on one machine, started as docs/running.md says; each has an address of the loopback network.

They share processors, memory and disk, so that a disk of its own is mounted for the second where one is
wanted. Only processes that were started here are ended.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

HEAD, OTHER = "127.0.0.2", "127.0.0.3"
START_SECONDS = 120
TRIES = 3
_RAY = str(Path(sys.executable).with_name("ray"))


class RayNode:
    """A `ray start --block` process and what it has started.

    Args:
        alone: folders in whose place this node sees an empty disk of its own; needs the right to mount.
    """

    def __init__(
        self, options: list[str], log: Path, environment: Mapping[str, str], alone: tuple[Path, ...] = ()
    ) -> None:
        self.log = log
        mounts = [f"mount -t tmpfs none {shlex.quote(str(folder))}" for folder in alone]
        script = " && ".join([*mounts, shlex.join(["exec", _RAY, "start", "--block", *options])])
        command = ["unshare", "--mount", "bash", "-c", script] if alone else ["bash", "-c", script]
        with open(log, "w") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                # As another machine would have it: nothing of this process's environment, another folder.
                env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **environment},
                cwd="/",
                start_new_session=True,
            )

    def is_started(self) -> bool:
        """Waits until it is; False where it has given up, as Ray does on a machine that is busy for 30 s."""
        deadline = time.monotonic() + START_SECONDS
        while "Ray runtime started" not in self.log.read_text():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.2)
        return True

    def processes(self) -> list[psutil.Process]:
        """What the node runs now, workers included."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def names(self) -> list[str]:
        """The command lines of its processes."""
        found = []
        for one in self.processes():
            with contextlib.suppress(psutil.Error):
                found.append(" ".join(one.cmdline()))
        return found

    def kill(self) -> None:
        """SIGKILL everything that the node runs, at once."""
        for one in self.processes():
            with contextlib.suppress(psutil.Error):
                one.kill()
        self.process.wait()

    def end(self) -> None:
        """As a user does, and then whatever is left."""
        left = self.processes()
        if self.process.poll() is None:
            self.process.terminate()
        psutil.wait_procs(left, timeout=20)
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        self.process.wait()


class RayNodes:
    """A cluster of a head node and others that are added; every node has 12 processors and one device."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        port = _free_port()
        self.address = f"{HEAD}:{port}"
        self._environment = {"RAY_AUTH_MODE": "disabled"}
        self.temporary = Path(f"/tmp/nodes-{port}")  # Ray's socket paths have to be short
        options = [f"--port={port}", "--include-dashboard=false", f"--temp-dir={self.temporary}"]
        self.nodes: list[RayNode] = []
        self.head = self._start(["--head", *options], HEAD)

    def add(self, alone: tuple[Path, ...] = (), devices: int = 1) -> RayNode:
        """Start another node; `alone` as of RayNode."""
        return self._start([f"--address={self.address}"], OTHER, alone, devices)

    def _start(self, options: list[str], ip: str, alone: tuple[Path, ...] = (), devices: int = 1) -> RayNode:
        counts = ["--num-cpus=12", f"--num-gpus={devices}", f"--node-ip-address={ip}"]
        for _ in range(TRIES):
            log = self._folder / f"node{len(self.nodes)}.txt"
            self.nodes.append(RayNode([*options, *counts], log, self._environment, alone))
            if self.nodes[-1].is_started():
                return self.nodes[-1]
        pytest.fail(log.read_text())

    def alive(self) -> list[RayNode]:
        """The nodes that have not ended."""
        return [node for node in self.nodes if node.process.poll() is None]

    def wait_for(self, count: int) -> None:
        """Wait until Ray counts so many nodes."""
        listed = "import ray; ray.init(log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))"
        environment = os.environ | {"RAY_ADDRESS": self.address}
        deadline = time.monotonic() + START_SECONDS
        while True:
            found = subprocess.run(
                [sys.executable, "-c", listed], env=environment, capture_output=True, text=True, check=True
            )
            if found.stdout.split()[-1] == str(count):
                return
            assert time.monotonic() < deadline, found.stdout

    def end(self) -> None:
        """End all nodes, the head last."""
        for node in reversed(self.nodes):
            node.end()
        shutil.rmtree(self.temporary, ignore_errors=True)


@contextlib.contextmanager
def ray_nodes(folder: Path) -> Iterator[RayNodes]:
    """A cluster whose logs go to `folder`; its nodes have ended when the block is left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        nodes = RayNodes(folder)
        try:
            yield nodes
        finally:
            nodes.end()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HEAD, 0))
        return int(probe.getsockname()[1])
