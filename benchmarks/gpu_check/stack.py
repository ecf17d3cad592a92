"""Part 3: the recipe's own worker, in a process of its own, since verl chooses its platform on import."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.gpu_check.lines import Line

_RANK = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
}


def check_worker(device: str, small: bool) -> Iterator[Line]:
    """`ReplayActorWorker.update_actor_replay` on one rank; see `verl_worker`.

    Raises:
        subprocess.CalledProcessError: the worker failed; its output is above.
    """
    command = [sys.executable, "-m", "benchmarks.gpu_check.verl_worker", device]
    environment = os.environ | _RANK | {"MASTER_PORT": str(_free_port())}
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    for fields in json.loads(output.splitlines()[-1]):
        yield Line(**fields)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
