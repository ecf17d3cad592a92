"""Ray nodes on one machine, started as docs/running.md says; each has an address of the loopback network.

They share processors, memory and disk. Only processes that were started here are ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

HEAD, OTHER = "127.0.0.2", "127.0.0.3"
START_SECONDS = 120
TRIES = 3


class RayNode:
    """A `ray start --block` process and what it has started; 16 processors and one device in Ray's count."""

    def __init__(self, ip: str, log: Path, *options: str) -> None:
        self.log = log
        ray = str(Path(sys.executable).with_name("ray"))
        counts = ["--num-cpus=16", "--num-gpus=1", f"--node-ip-address={ip}"]
        # As another machine would have it: nothing of this process's environment, another folder.
        environment = {name: os.environ[name] for name in ("PATH", "HOME")} | {"RAY_AUTH_MODE": "disabled"}
        with open(log, "w") as output:
            self.process = subprocess.Popen(
                [ray, "start", "--block", *counts, *options],
                stdout=output,
                stderr=output,
                env=environment,
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
    """A cluster of a head node, to which another one can be added."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind((HEAD, 0))
            port = probe.getsockname()[1]
        self.address = f"{HEAD}:{port}"
        self.temporary = Path(f"/tmp/nodes-{port}")  # Ray's socket paths have to be short
        self.nodes: list[RayNode] = []
        options = [f"--port={port}", "--include-dashboard=false", f"--temp-dir={self.temporary}"]
        self.head = self._start(HEAD, "--head", *options)

    def other(self) -> RayNode:
        """A second node that runs."""
        return self._start(OTHER, f"--address={self.address}")

    def _start(self, ip: str, *options: str) -> RayNode:
        for _ in range(TRIES):
            log = self._folder / f"node{len(self.nodes)}.txt"
            self.nodes.append(RayNode(ip, log, *options))
            if self.nodes[-1].is_started():
                return self.nodes[-1]
        pytest.fail(log.read_text())


@contextlib.contextmanager
def ray_nodes(folder: Path) -> Iterator[RayNodes]:
    """A cluster whose logs go to `folder`; its nodes have ended when the block is left, the head last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        nodes = RayNodes(folder)
        try:
            yield nodes
        finally:
            for node in reversed(nodes.nodes):
                node.end()
            shutil.rmtree(nodes.temporary, ignore_errors=True)
