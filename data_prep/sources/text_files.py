"""Text files as people have them: UTF-8 with or without a mark; anything else is named for what it is."""

from __future__ import annotations

import codecs
from pathlib import Path

from data_prep.sources.errors import SourceError

_BEGINNINGS = {
    b"\x1f\x8b": "a gzip archive; unpack it first",
    b"PK\x03\x04": "a zip archive or an Excel file; unpack it, or let its name end in .xlsx",
    b"BZh": "a bzip2 archive; unpack it first",
    b"\xfd7zXZ\x00": "an xz archive; unpack it first",
    b"PAR1": "a parquet file; let its name end in .parquet",
    codecs.BOM_UTF16_LE: "UTF-16 text; save it as UTF-8",
    codecs.BOM_UTF16_BE: "UTF-16 text; save it as UTF-8",
}
"""What a file that begins so is, and what to do with it."""


def read_text(path: Path) -> str:
    """The text of a file. Raises SourceError naming file and line."""
    content = read_bytes(path)
    for beginning, kind in _BEGINNINGS.items():
        if content.startswith(beginning):
            raise SourceError(f"{path}: is {kind}")
    if (place := content.find(b"\0")) >= 0:
        raise SourceError(f"{path}:{_line(content, place)}: holds a NUL character; is it a UTF-8 text file?")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}:{_line(error.object, error.start)}: is not UTF-8 text") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_bytes(path: Path) -> bytes:
    """The bytes of a regular file: a pipe might never end. Raises SourceError."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise SourceError(f"{path}: cannot be read (it is no regular file)")
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from None


def _line(content: bytes, place: int) -> int:
    return content.count(b"\n", 0, place) + 1
