"""Exactly the processes that a command has started end with it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from recipe.rerule.process.processes import Started

# A process with a child of its own, that holds a semaphore as a spawning multiprocessing context makes it.
PARENT = """
import multiprocessing, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
semaphore = multiprocessing.get_context("spawn").Semaphore()
print(child.pid, semaphore._semlock.name, flush=True)
time.sleep(60)
"""


def parent() -> tuple[subprocess.Popen[str], int, Path]:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child, semaphore = process.stdout.readline().split()
    return process, int(child), Path("/dev/shm") / f"sem.{semaphore.removeprefix('/')}"


def gone(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_orphans_and_semaphores_go_and_what_was_there_before_stays() -> None:
    other, other_child, other_semaphore = parent()
    started = Started()
    process, child, semaphore = parent()
    assert semaphore.exists()
    started.remember()
    process.kill()
    process.wait()
    assert not gone(child)
    started.end(grace=0)
    assert gone(child)
    assert not semaphore.exists()
    assert not gone(other.pid)
    assert not gone(other_child)
    assert other_semaphore.exists()

    Started(other.pid).end(grace=0)
    assert gone(other.pid)
    assert gone(other_child)
    assert not other_semaphore.exists()
    for one in (process, other):
        one.communicate()


def test_those_that_end_by_themselves_are_waited_for() -> None:
    started = Started()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])
    at = time.monotonic()
    started.end(grace=20)
    assert 0.1 < time.monotonic() - at < 15
    assert process.wait() == 0
