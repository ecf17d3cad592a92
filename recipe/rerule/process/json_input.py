"""JSON that others may have written: read with reasons that a user understands, and refused where it lies.

Nested deeper than MOST_LEVELS, or with one key twice in an object, it was not written for this program.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MOST_LEVELS = 60
"""Nested objects and lists, the outermost counted: more would exhaust the stack of what reads them."""

Objects = Callable[[list[tuple[str, Any]]], Any]


def unique(pairs: list[tuple[str, Any]]) -> Any:
    """The object of these keys and values; refuses a key that is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _DoubtfulError(f"has the key {_short(twice)} twice in one object")
    return found


def parse(text: str | bytes, *, nan: bool = False, objects: Objects = unique) -> Any:
    """The value in a JSON text.

    Args:
        nan: whether NaN and Infinity, which are not JSON, are read as Python writes them.
        objects: what is made of an object's keys and values.

    Raises:
        ValueError: what is wrong, to be read after "FILE ": "is cut off in line 3", "is nested too deeply".
    """
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(
            decoded, object_pairs_hook=objects, parse_constant=None if nan else _refuse_constant
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"is not text in UTF-8 (byte {error.start + 1})") from None
    except json.JSONDecodeError as error:
        raise ValueError(_reason(error)) from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except _DoubtfulError as error:
        raise ValueError(str(error)) from None
    except ValueError:  # the interpreter's limit for whole numbers
        raise ValueError("holds a number of too many digits") from None
    check_levels(value)
    if _HALF.search(decoded):
        _check_characters(value)
    return value


def is_finite(value: Any) -> bool:
    """Whether a value is a number that a float holds; true and false are none."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


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


def check_levels(value: Any, most: int = MOST_LEVELS) -> None:
    """Raises ValueError where objects and lists are nested deeper than `most` levels."""
    level = [value]
    for _ in range(most):
        level = [inner for outer in level for inner in _inner(outer) if isinstance(inner, dict | list)]
        if not level:
            return
    raise ValueError("is nested too deeply")


def _inner(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def _check_characters(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair, which is no character") from None


class _DoubtfulError(Exception):
    """JSON of which two readers would make different things."""


def _refuse_constant(name: str) -> Any:
    raise _DoubtfulError(f"holds {name}, which is no number of JSON")


def _reason(error: json.JSONDecodeError) -> str:
    if not error.doc.strip():
        return "is empty"
    # A text that stops in a string, number or word is complained of where that begins or before its end.
    rest = "" if error.msg.startswith("Unterminated string") else error.doc[error.pos :]
    if error.pos and error.msg != "Extra data" and re.fullmatch(r"[\w.+-]*\s*", rest):
        return f"is not complete JSON: it is cut off in line {error.lineno}"
    return f"is not JSON: {error.msg[0].lower()}{error.msg[1:]} in line {error.lineno}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
