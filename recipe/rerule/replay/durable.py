"""Files that are whole or absent at any moment, also after a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """Put ``data`` in place of what the file held; whoever reads it finds the old or the new bytes, whole.

    Raises:
        OSError: the disk refused; the file is as it was.
    """
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Put a file's contents, or a folder's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
