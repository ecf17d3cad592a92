"""One raw row and where it stands, whatever kind of file it is from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.sources.errors import SourceError, shown
from data_prep.sources.json_rows import json_rows, loaded
from data_prep.sources.table_rows import csv_rows, excel_rows, parquet_rows
from data_prep.sources.text_files import read_text
from data_prep.text import control_character

_MISSING = ("nan", "NaN", "#N/A", "<NA>")
"""What programs write into a cell that has no value."""
_LONGEST_LIST = 200


@dataclass(frozen=True)
class Record:
    """A raw row.

    Attributes:
        fields: its values by name.
        origin: where it stands, for messages: "FILE:LINE (row N)", both from 1.
        columns: of its table; empty for JSON, where each row has fields of its own.
    """

    fields: Mapping[str, Any]
    origin: str
    columns: Sequence[str] = ()

    def get(self, name: str) -> Any:
        """The field `name`; None where it is missing.

        A name that differs in case or in the white space around it is taken where the exact one is missing.
        Raises SourceError where there are several of those.
        """
        if name in self.fields:
            return self.fields[name]
        alike = [found for found in self.fields if found.strip().casefold() == name]
        if len(alike) > 1:
            raise SourceError(f"{self.origin}: fields {' and '.join(map(shown, alike))} are both {name}")
        return self.fields[alike[0]] if alike else None

    def text(self, *names: str) -> str:
        """The first of the fields `names` that is there, which must be a non-empty string.

        Surrounding white space is taken off. Raises SourceError.
        """
        for name in names:
            if (value := self.get(name)) is not None:
                return self.filled(name, value)
        raise SourceError(f"{self.origin}: field {' or '.join(names)} is {self._absence(names)}")

    def texts(self, name: str) -> tuple[str, ...]:
        """The texts of the list `name`, which must hold at least one. Raises SourceError."""
        values = self.get(name)
        if not isinstance(values, list) or not values:
            raise SourceError(f"{self.origin}: field {name} is {shown(values)}, expected a list of texts")
        return tuple(self.filled(name, value) for value in values)

    def verbatim(self, name: str) -> str:
        """The field `name` with its surrounding white space, which must be a text. Raises SourceError."""
        self.text(name)
        return str(self.get(name))

    def optional(self, name: str, default: str) -> str:
        """The field `name` as `text` gives it; `default` where it is missing or empty. Raises SourceError."""
        return default if self.get(name) in (None, "") else self.text(name)

    def one_of(self, name: str, allowed: Sequence[str], default: str = "") -> str:
        """Which of `allowed` the field `name` is, in whatever case; `default` where it is missing or empty.

        Raises SourceError where it is none of them.
        """
        expected = f"expected one of {', '.join(allowed)}"
        value = self.optional(name, default)
        if not value:
            raise SourceError(f"{self.origin}: field {name} is {self._absence([name])}; {expected}")
        found = next((one for one in allowed if one.casefold() == value.casefold()), None)
        if found is None:
            raise SourceError(f"{self.origin}: {name} is {shown(value)}, {expected}")
        return found

    def filled(self, name: str, value: Any) -> str:
        """`value`, of the field `name`, without surrounding white space.

        Raises SourceError where none is left, or where it holds what no text should.
        """
        if not isinstance(value, str) or not value.strip() or not _is_unicode(value):
            raise SourceError(f"{self.origin}: field {name} is {shown(value)}, expected a text")
        if (character := control_character(value)) is not None:
            raise SourceError(f"{self.origin}: field {name} holds {character}; take it out")
        if value.strip() in _MISSING:
            raise SourceError(
                f"{self.origin}: field {name} is {value.strip()}, which stands for a missing value"
            )
        return value.strip()

    def _absence(self, names: Sequence[str]) -> str:
        """In what way the fields `names` are not there."""
        there = self.columns or [*self.fields]
        if {column.strip().casefold() for column in there} & {*names}:
            return "empty"
        found = ", ".join(map(shown, there))[:_LONGEST_LIST]
        return f"missing; the {'columns' if self.columns else 'fields'} found are {found or 'none'}"


def read_records(path: Path, name: str | None = None) -> list[Record]:
    """The rows of a table (.csv, .tsv, .parquet, .xlsx), or of a file of JSON, an array or an object a line.

    `name` is what their origins call the file. Raises SourceError naming file and line.
    """
    read = _READERS.get(path.suffix.lower(), _json_records)
    records = [
        Record(fields, f"{name or path}{place} (row {row})", columns)
        for row, (place, fields, columns) in enumerate(read(path), start=1)
    ]
    if not records:
        raise SourceError(f"{path}: holds no rows")
    return records


def read_texts(path: Path) -> list[str]:
    """The strings of a JSON array, or the lines of any other text file that are not blank.

    Raises SourceError naming the file.
    """
    text = read_text(path)
    values = loaded(path, text) if path.suffix.lower() == ".json" else text.splitlines()
    if not isinstance(values, list) or not all(isinstance(v, str) and _is_unicode(v) for v in values):
        raise SourceError(f"{path}: expected a JSON array of texts")
    filled = [value.strip() for value in values if value.strip()]
    if not filled:
        raise SourceError(f"{path}: holds no text")
    for number, value in enumerate(filled, start=1):
        if (character := control_character(value)) is not None:
            raise SourceError(f"{path}: text {number} holds {character}; take it out")
    return filled


def _is_unicode(text: str) -> bool:
    """False for half of a surrogate pair, which JSON can write and no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


Rows = Iterator[tuple[str, dict[str, Any], Sequence[str]]]
"""Of each row: what its origin says of the line, its fields, its table's columns."""


def _json_records(path: Path) -> Rows:
    return ((f":{line}", fields, ()) for line, fields in json_rows(path))


def _csv_records(path: Path) -> Rows:
    return ((f":{line}", fields, columns) for line, fields, columns in csv_rows(path))


def _excel_records(path: Path) -> Rows:
    return ((f":{line}", fields, columns) for line, fields, columns in excel_rows(path))


def _parquet_records(path: Path) -> Rows:
    return (("", fields, columns) for _, fields, columns in parquet_rows(path))


def _unread_kind(path: Path) -> Rows:
    raise SourceError(
        f"{path}: a {path.suffix} file cannot be read; save it as .csv, .xlsx, .parquet or JSON"
    )


_READERS: dict[str, Callable[[Path], Rows]] = {
    ".csv": _csv_records,
    ".tsv": _csv_records,
    ".parquet": _parquet_records,
    ".xlsx": _excel_records,
    ".xls": _unread_kind,
    ".ods": _unread_kind,
}
