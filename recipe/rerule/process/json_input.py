"""Files of JSON that others may have written: read strictly, and refused in one line that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_prep.strict_json import MOST_LEVELS, is_finite, parse, unique

__all__ = ["MOST_LEVELS", "is_finite", "parse", "read_json", "read_lines", "unique"]


def read_json(file: Path, *, nan: bool = False) -> Any:
    """The value in a JSON file. Raises ValueError, one line that names the file, and OSError."""
    _check_file(file)
    try:
        return parse(file.read_bytes(), nan=nan)
    except ValueError as error:
        raise ValueError(f"{file} {error}") from None


def read_lines(file: Path, *, nan: bool = False) -> Iterator[tuple[int, Any]]:
    """Line numbers, from 1, and values of a file of JSON lines; empty lines are passed over.

    Raises ValueError, one line that names file and line, and OSError.
    """
    _check_file(file)
    # As bytes: a text would end its lines at U+2028 and the like too, which JSON may hold as they are.
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield number, parse(line, nan=nan)
            except ValueError as error:
                raise ValueError(f"{file}: line {number} {str(error).removesuffix(' in line 1')}") from None


def _check_file(file: Path) -> None:
    if file.is_dir():
        raise ValueError(f"{file} is a folder, not a file")
    if not file.is_file():
        raise ValueError(f"{file} does not exist")
