"""A full disk is named as such, with the path, the bytes needed and the bytes there is room for.

Libraries have words of their own for it: torch's writer says "unexpected pos", safetensors "os error 28".
Standard library only: any package may use it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

_FULL_BYTES = 2**20
"""A file system with less free space than this counts as full."""
_ERRNOS = {errno.ENOSPC: "full", errno.EDQUOT: "quota", errno.EFBIG: "limit"}
_WORDS = {
    "No space left on device": "full",
    "no space left on device": "full",
    "os error 28": "full",
    "Disk quota exceeded": "quota",
    "File too large": "limit",
    "unexpected pos": "torch",
    "PytorchStreamWriter failed": "torch",
    "file write failed": "torch",
}
"""What libraries say, and which kind of refusal it is. torch says the same whatever the reason."""


class DiskFullError(OSError):
    """A file could not be written for want of room; the message is one line and says what to do."""


@contextlib.contextmanager
def named(
    path: str | Path, written: str | Path | None = None, needed: Callable[[], int | None] = lambda: None
) -> Iterator[None]:
    """Where the block fails for want of room on a disk, say so of `path`, the file or folder it writes.

    Args:
        path: as the user knows it.
        written: where its parts are while it is written; `path` itself where None.
        needed: bytes that it will have; asked for after the failure. None: not known.

    Raises:
        DiskFullError: in place of what the block raised.
    """
    try:
        yield
    except DiskFullError:
        raise
    except Exception as error:
        kind = _refusal(error)
        reason = _reason(kind, Path(path), Path(written or path), needed) if kind else None
        if reason is None:
            raise
        raise DiskFullError(reason) from error


def size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; 0 where nothing is there."""
    if path.is_file():
        return path.stat().st_size
    total = 0
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):  # another process may be removing it
            total += file.lstat().st_size if file.is_file() else 0
    return total


def _refusal(error: BaseException) -> str | None:
    """Which kind of refusal is behind an exception, also of another process."""
    for one in _chain(error):
        if isinstance(one, OSError) and one.errno in _ERRNOS:
            return _ERRNOS[one.errno]
    text = " ".join(str(one) for one in _chain(error))
    return next((kind for words, kind in _WORDS.items() if words in text), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and what caused it; Ray keeps a worker's exception in `cause`."""
    pending, seen = [error], set()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        causes = (one.__cause__, one.__context__, getattr(one, "cause", None))
        pending += [cause for cause in causes if isinstance(cause, BaseException)]


def _reason(kind: str, path: Path, written: Path, needed: Callable[[], int | None]) -> str | None:
    """One line about the failed write of `path`; None where room was not what it lacked."""
    done, free = size(written), _free(written)
    wanted = needed()
    if kind == "torch":
        limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
        short = free < max(_FULL_BYTES, (wanted or 0) - done)
        kind = "full" if short else "limit" if limited else ""
    if kind == "full" and free >= _FULL_BYTES and (other := _full_elsewhere()) is not None:
        return f"the disk of {other} is full: {_free(other):,} bytes are free there; {path} is not complete"
    need = f"{wanted:,} bytes" if wanted else f"more than {done:,} bytes"
    return {
        "full": f"the disk is full: {path} needs {need}, and there was room for {done + free:,}",
        "quota": f"the disk quota is used up: {path} needs {need}, and {done:,} could be written",
        "limit": f"a file of {path} would be larger than this process may write (ulimit -f); it needs {need}",
    }.get(kind)


def _full_elsewhere() -> Path | None:
    """Another place that processes write to, where it is full."""
    places = (Path("/dev/shm"), Path(tempfile.gettempdir()))
    return next((place for place in places if place.is_dir() and _free(place) < _FULL_BYTES), None)


def _free(path: Path) -> int:
    """Bytes free for this user on the file system of `path`, or of its nearest folder that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free if os.path.exists(path) else 0
