"""One run at a time in a run folder.

The lock is the kernel's (flock on <run>/run.lock): it ends with the process that holds it, however that ends.
Between machines it holds as far as the file system passes it on; NFS does from version 4 on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

FILE = "run.lock"


class BusyError(ValueError):
    """Another run is writing into the folder; the message is one line and says which."""


@contextlib.contextmanager
def held(run_folder: str | Path) -> Iterator[None]:
    """Make the folder where it is missing, and keep other runs out of it while the block runs.

    Raises:
        BusyError: another run holds it; the message names its process and machine.
        OSError: the folder cannot be made or written to.
    """
    path = Path(run_folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _open_locked(path)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _open_locked(path: Path) -> int:
    """A descriptor of the file at `path`, locked; closing it, or the end of this process, frees the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor, path)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its owner removed it between our opening and locking it


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
        raise BusyError(
            f"{path.parent} is in use by another run ({owner}); wait for it or end it, or choose another "
            "trainer.default_local_dir"
        ) from error
    except OSError as error:
        print(
            f"warning: {path.parent} cannot be locked ({error.strerror}), so a second run in it would not be "
            "refused",
            file=sys.stderr,
        )


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
