"""Files that are whole or absent at any moment, also after a power cut, and files of JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

DRAFT_SUFFIX = ".tmp"
"""What `replacing` adds to a file's name; a kill may leave such a file behind."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path`; the file that the block writes there takes the place of `path` at its end.

    Whoever reads `path` finds the old or the new content, whole.

    Raises:
        OSError: the disk refused; the file is as it was.
    """
    draft = path.with_name(path.name + DRAFT_SUFFIX)
    yield draft
    flush(draft)
    os.replace(draft, path)
    flush(path.parent)


def write(path: Path, data: bytes) -> None:
    """Put `data` in place of what the file held, as `replacing` does. Raises OSError."""
    with replacing(path) as draft:
        draft.write_bytes(data)


def flush(path: Path) -> None:
    """Put a file's contents, or a folder's entries, on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """`flush` a folder and all that is below it, whichever process wrote it. Raises OSError."""
    for path in folder.rglob("*"):
        flush(path)
    flush(folder)


def json_lines(records: Iterable[Mapping[str, Any]], *, nan: bool = False) -> str:
    """A JSON object a line.

    Args:
        nan: whether NaN and Infinity, which are not JSON, are written as Python reads them.

    Raises:
        ValueError: NaN or Infinity, without `nan`.
    """
    return "".join(json.dumps(record, ensure_ascii=False, allow_nan=nan) + "\n" for record in records)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append a JSON object to a file of JSON lines; NaN is written as Python reads it. Raises OSError."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json_lines([record], nan=True))


def drop_torn_line(path: Path) -> None:
    """Cut off what a kill left of a last line, to which the next one would be appended. Raises OSError."""
    content = path.read_bytes() if path.is_file() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
