"""What a machine sees of a run's files: whether its run folder is another machine's, and what it would read.

Every node of a cluster that a run joins is asked (`nodes`). Little is imported, so that a node answers within
a second or two.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipe.rerule import io

SHARED_SECONDS = 10.0
"""How long a file may take to be seen on another machine; NFS looks again after some seconds."""
WHOLE_BYTES = 64 * 2**20
"""Files up to this size are compared whole, larger ones by their size, first and last PART_BYTES."""
PART_BYTES = 2**20
_WORD = "word"


@dataclass(frozen=True)
class Seen:
    """What one machine sees.

    Attributes:
        shares: whether it read the word of the run folder.
        write_error: why it cannot write there; None where it can.
        digests: for each path asked for, `digests` of it.
    """

    shares: bool
    write_error: str | None
    digests: Mapping[str, Mapping[str, str]]


@contextlib.contextmanager
def word(folder: str | Path) -> Iterator[tuple[Path, str]]:
    """A new folder in the run folder, and a random word that stands in its file; both are gone afterwards.

    Where the block raises, so are the folders that had to be made for the run folder.
    """
    folder, text = Path(folder), secrets.token_hex(16)
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(
            dir=folder, prefix=".rerule-nodes-", ignore_cleanup_errors=True
        ) as place:
            os.chmod(place, 0o755)  # other nodes may run as other users
            io.write(Path(place, _WORD), text.encode())
            yield Path(place), text
    except BaseException:
        for one in missing:
            with contextlib.suppress(OSError):  # somebody else uses it by now
                one.rmdir()
        raise


def look(place: Path, text: str, answer: str, paths: Sequence[str]) -> Seen:
    """What this machine sees; leaves the word in a file `answer` beside it."""
    if not is_seen(place / _WORD, text):
        return Seen(False, None, {})
    try:
        io.write(place / answer, text.encode())
    except OSError as error:
        return Seen(True, error.strerror or str(error), {})
    return Seen(True, None, {path: digests(path) for path in paths})


def is_seen(path: Path, text: str) -> bool:
    """Whether the file holds `text`, now or within SHARED_SECONDS."""
    deadline = time.monotonic() + SHARED_SECONDS
    while True:
        with contextlib.suppress(OSError):
            if path.read_text() == text:
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.5)


def digests(path: str) -> dict[str, str]:
    """A digest of each file of a folder by its path there, or of a file alone as ""; {} where nothing is."""
    if os.path.isfile(path):
        return {"": _digest(Path(path))}
    found = {}
    for folder, _, names in os.walk(path, followlinks=True):
        for name in names:
            file = Path(folder, name)
            found[str(file.relative_to(path))] = _digest(file)
    return found


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str | None:
    """What is wrong with another machine's `digests` of a path, as in "has another config.json"."""
    if not there:
        return "has nothing"
    for name, digest in sorted(here.items()):
        if name not in there:
            return f"has no {name}"
        if there[name] != digest:
            return f"has another {name}" if name else "has another file"
    return None


def _digest(file: Path) -> str:
    """SHA-256 of a file's size and contents, or parts of them; "unreadable" where it cannot be read."""
    try:
        with open(file, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            digest = hashlib.sha256(f"{size}\n".encode())
            if size <= WHOLE_BYTES:
                digest.update(opened.read())
            else:
                digest.update(opened.read(PART_BYTES))
                opened.seek(-PART_BYTES, os.SEEK_END)
                digest.update(opened.read())
    except OSError:
        return "unreadable"
    return digest.hexdigest()
