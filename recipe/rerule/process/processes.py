"""The processes that a command has started, so that exactly these end with it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

GRACE_SECONDS = 10.0
"""Time for processes to end by themselves before they are killed."""
FOLLOW_SECONDS = 10.0

_SHARED_MEMORY = Path("/dev/shm")


class Started:
    """What a process has started, and what these have; known by process id and time of start.

    Args:
        root: a process of ours, which counts too; None: this process, which does not, and only those count
            that are not there yet.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = psutil.Process(root)
        self._known: dict[int, psutil.Process] = {} if root is None else {root: self._root}
        self._others = (
            {process.pid for process in self._root.children(recursive=True)} if root is None else set()
        )
        self._shared_memory: set[Path] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Remember them every few seconds, so that those are known who lose their parent within the block."""
        left = threading.Event()

        def follow() -> None:
            while not left.wait(FOLLOW_SECONDS):
                self.remember()

        threading.Thread(target=follow, name="rerule-processes", daemon=True).start()
        try:
            yield
        finally:
            left.set()

    def remember(self) -> None:
        """Note who is there now, and the names in /dev/shm that they hold.

        To be called before a shutdown: who loses its parent is no longer found.
        """
        with self._lock, contextlib.suppress(psutil.NoSuchProcess):
            found = [one for one in self._root.children(recursive=True) if one.pid not in self._others]
            self._known |= {process.pid: process for process in found}
            for pid in self._known:
                with contextlib.suppress(OSError):  # it has ended
                    self._shared_memory |= set(_mapped(pid))

    def end(self, grace: float = GRACE_SECONDS) -> None:
        """Wait up to `grace` seconds for them to end, then kill the rest, and remove what they left in
        /dev/shm: a killed process cannot remove its semaphores."""
        self.remember()
        deadline = time.monotonic() + grace
        while self._alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.kill()
        for path in self._shared_memory:
            path.unlink(missing_ok=True)

    def kill(self) -> None:
        """SIGKILL all of them, those started since included."""
        self.remember()
        alive = self._alive()
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(alive, timeout=GRACE_SECONDS)

    def _alive(self) -> list[psutil.Process]:
        return [process for process in list(self._known.values()) if _runs(process)]


def _runs(process: psutil.Process) -> bool:
    """Whether it is there and no zombie; a reused process id is another process."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _mapped(pid: int) -> Iterator[Path]:
    """Named shared memory that a process has mapped, semaphores among them.

    Found by inode, since a semaphore is mapped under a first name that is gone.
    """
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    inodes = {int(line.split(maxsplit=5)[4]) for line in lines if "/dev/shm/" in line}
    return (path for path in _SHARED_MEMORY.iterdir() if inodes and path.stat().st_ino in inodes)
