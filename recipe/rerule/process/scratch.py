"""The temporary folder of one command: what its processes leave in temporary folders goes with it.

verl and vLLM leave lock files, sockets and rendezvous files behind. A command that is killed cannot remove
its folder; the next one does, since a lock that ended with its owner tells that the folder is not used.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "rerule-"
_LOCK = "in-use"
_LONGEST = 60
"""Longest path, in bytes, in which sockets still find room: their names are long, and 107 is the limit."""


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A new temporary folder, removed when the block is left; folders of dead commands are removed first."""
    parent = _parent()
    _sweep(parent)
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    lock = os.open(path / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(path / "lock", path / _LOCK)  # found by others only once it is locked
        yield path
    finally:
        os.close(lock)
        shutil.rmtree(path, ignore_errors=True)


def environment(path: Path) -> dict[str, str]:
    """What makes processes use this folder for temporary files, but for caches that outlast a run."""
    inductor = Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    return {
        "TMPDIR": str(path),
        "VLLM_RPC_BASE_PATH": str(path),
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(inductor)),
    }


def _parent() -> Path:
    usual = tempfile.gettempdir()
    return Path(usual if len(os.fsencode(usual)) <= _LONGEST else "/tmp")


def _sweep(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # another user's, or already gone
            lock = os.open(path, os.O_WRONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(lock)
