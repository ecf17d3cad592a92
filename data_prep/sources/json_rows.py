"""Rows of JSON: one array of objects, or one object a line, whatever the file's name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_prep.sources.errors import SourceError, shown
from data_prep.sources.text_files import read_text
from recipe.rerule.io import RepeatedKeyError, unique_keys

_BLANK = " \t\r\n"


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects with the line each begins on, decoded one by one so that a row can be named by its line.

    Raises SourceError naming file and line.
    """
    text = read_text(path)
    start, newlines = _skip(text, 0, _BLANK)
    line = 1 + newlines
    is_array = text[start : start + 1] == "["
    if not is_array and text[start : start + 1] not in ("", "{") and path.suffix.lower() != ".json":
        raise SourceError(f"{path}:{line}: is not JSON; a table must be named .csv, .tsv, .parquet or .xlsx")
    between = _BLANK + ("," if is_array else "")
    place, row = start + is_array, 0
    while True:
        place, newlines = _skip(text, place, between)
        line += newlines
        if place == len(text) or (is_array and text[place] == "]"):
            break
        row += 1
        value, end = _decode(path, text, place, line, row)
        yield line, value
        line += text.count("\n", place, end)
        place = end
    if is_array:
        _check_array_end(path, text, place, line)


def loaded(path: Path, text: str) -> Any:
    """The one value of a JSON text. Raises SourceError naming the file."""
    with _refused(path, ""):
        return json.loads(text, object_pairs_hook=unique_keys)


def _decode(path: Path, text: str, place: int, line: int, row: int) -> tuple[dict[str, Any], int]:
    """The object at `place` of the text, and where it ends."""
    with _refused(path, f":{line}", f" (row {row})"):
        value, end = json.JSONDecoder(object_pairs_hook=unique_keys).raw_decode(text, place)
    if not isinstance(value, dict):
        raise SourceError(f"{path}:{line}: is {shown(value)}, expected an object with named fields")
    return value, end


@contextmanager
def _refused(path: Path, line: str, row: str = "") -> Iterator[None]:
    """Turn what json raises into a SourceError that names the file and the place in it."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise SourceError(f"{path}:{error.lineno}: is not JSON ({error.msg})") from None
    except RepeatedKeyError as error:
        raise SourceError(
            f"{path}{line}{row}: key {shown(error.key)} is there twice; keep one of them"
        ) from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        raise SourceError(f"{path}{line}: cannot be read ({error})") from None


def _check_array_end(path: Path, text: str, place: int, line: int) -> None:
    if place == len(text):
        raise SourceError(f"{path}:{line}: the array is not closed; is the file cut off?")
    after, newlines = _skip(text, place + 1, _BLANK)
    if after < len(text):
        raise SourceError(f"{path}:{line + newlines}: goes on after the array that the file begins with")


def _skip(text: str, start: int, characters: str) -> tuple[int, int]:
    """The first place from `start` on that holds none of `characters`, and the newlines passed."""
    place = start
    while place < len(text) and text[place] in characters:
        place += 1
    return place, text.count("\n", start, place)
