"""One raw row and where it stands, from JSON (an array or one value a line, whatever the name) or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLANK = " \t\r\n"


class SourceError(ValueError):
    """Raw material is missing or not as expected; the message is one line naming file and line."""


@dataclass(frozen=True)
class Record:
    """A raw row.

    Attributes:
        fields: its values by name.
        origin: where it stands, for messages: "FILE:LINE (row N)", both from 1.
    """

    fields: Mapping[str, Any]
    origin: str

    def text(self, *names: str) -> str:
        """The first of the fields `names` that is there, which must be a non-empty string.

        Surrounding white space is taken off. Raises SourceError.
        """
        for name in names:
            if self.fields.get(name) is not None:
                return self.filled(name, self.fields[name])
        raise SourceError(f"{self.origin}: field {' or '.join(names)} is missing")

    def texts(self, name: str) -> tuple[str, ...]:
        """The texts of the list `name`, which must hold at least one. Raises SourceError."""
        values = self.fields.get(name)
        if not isinstance(values, list) or not values:
            raise SourceError(f"{self.origin}: field {name} is {values!r:.60}, expected a list of texts")
        return tuple(self.filled(name, value) for value in values)

    def verbatim(self, name: str) -> str:
        """The field `name` with its surrounding white space, which must be a text. Raises SourceError."""
        self.text(name)
        return self.fields[name]

    def optional(self, name: str, default: str) -> str:
        """The field `name` as `text` gives it; `default` where it is missing or empty. Raises SourceError."""
        return default if self.fields.get(name) in (None, "") else self.text(name)

    def one_of(self, name: str, allowed: Sequence[str], default: str = "") -> str:
        """The field `name`, or `default` where it is missing or empty. SourceError if not in `allowed`."""
        value = self.optional(name, default)
        if value not in allowed:
            raise SourceError(f"{self.origin}: {name} is {value!r:.60}, expected one of {', '.join(allowed)}")
        return value

    def filled(self, name: str, value: Any) -> str:
        """`value`, of the field `name`, without surrounding white space. SourceError if none is left."""
        if not isinstance(value, str) or not value.strip() or not _is_unicode(value):
            raise SourceError(f"{self.origin}: field {name} is {value!r:.60}, expected a text")
        return value.strip()


def read_records(path: Path, name: str | None = None) -> list[Record]:
    """The rows of a .csv file, or of a file of JSON: one array of objects, or one object a line.

    `name` is what their origins call the file. Raises SourceError naming file and line.
    """
    text = _read(path)
    rows = _csv_rows(path, text) if path.suffix.lower() == ".csv" else _json_rows(path, text)
    records = [
        Record(fields, f"{name or path}:{line} (row {row})")
        for row, (line, fields) in enumerate(rows, start=1)
    ]
    if not records:
        raise SourceError(f"{path}: holds no rows")
    return records


def read_texts(path: Path) -> list[str]:
    """The strings of a JSON array, or the lines of any other text file that are not blank.

    Raises SourceError naming the file.
    """
    text = _read(path)
    try:
        values = json.loads(text) if path.suffix.lower() == ".json" else text.splitlines()
    except json.JSONDecodeError as error:
        raise SourceError(f"{path}:{error.lineno}: is not JSON ({error.msg})") from None
    if not isinstance(values, list) or not all(isinstance(v, str) and _is_unicode(v) for v in values):
        raise SourceError(f"{path}: expected a JSON array of texts")
    filled = [value.strip() for value in values if value.strip()]
    if not filled:
        raise SourceError(f"{path}: holds no text")
    return filled


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SourceError(f"{path}:{line}: is not UTF-8 text") from None


def _is_unicode(text: str) -> bool:
    """False for half of a surrogate pair, which JSON can write and no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with the line each begins on; an empty cell counts as a missing field."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    names: Sequence[str] = ()
    line = 1
    try:
        for cells in reader:
            if cells and not names:
                names = _header(path, line, cells)
            elif cells:
                if len(cells) != len(names):
                    raise SourceError(f"{path}:{line}: has {len(cells)} columns, the header {len(names)}")
                yield line, {name: cell for name, cell in zip(names, cells, strict=True) if cell.strip()}
            line = reader.line_num + 1
    except csv.Error as error:
        raise SourceError(f"{path}:{line}: is not CSV ({error})") from None


def _header(path: Path, line: int, cells: Sequence[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    for name in names:
        if names.count(name) > 1:
            raise SourceError(f"{path}:{line}: column {name!r} is there twice")
    return names


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects with the line each begins on, decoded one by one so that a row can be named by its line."""
    start, newlines = _skip(text, 0, _BLANK)
    line = 1 + newlines
    is_array = text[start : start + 1] == "["
    between = _BLANK + ("," if is_array else "")
    place = start + is_array
    while True:
        place, newlines = _skip(text, place, between)
        line += newlines
        if place == len(text) or (is_array and text[place] == "]"):
            break
        value, end = _decode(path, text, place, line)
        yield line, value
        line += text.count("\n", place, end)
        place = end
    if is_array:
        _check_array_end(path, text, place, line)


def _decode(path: Path, text: str, place: int, line: int) -> tuple[dict[str, Any], int]:
    """The object at `place` of the text, and where it ends."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, place)
    except json.JSONDecodeError as error:
        raise SourceError(f"{path}:{error.lineno}: is not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        raise SourceError(f"{path}:{line}: cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise SourceError(f"{path}:{line}: is {value!r:.40}, expected an object with named fields")
    return value, end


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
