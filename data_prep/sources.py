"""Reading raw material: JSON, CSV and parquet files, folders of them, or a Hugging Face data set.

Raw material that cannot be used is refused in one line that names the file and the line in it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import reprlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.contract import CONTROL, control_character
from recipe.rerule.io import RepeatedKeyError, file_sha256, unique_keys

SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")
"""Of the files of a benchmark's folder."""
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60
_MISSING = ("nan", "NaN", "#N/A", "<NA>")
"""What programs write into a cell that has no value."""


class SourceError(ValueError):
    """Raw material is missing or not as expected; the message is one line naming file and line."""


def shown(value: Any) -> str:
    """A value for a message: one short line, however long or deeply nested the value is."""
    return _REPR.repr(value)[:60]


# ---- records ----


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

    def texts(self, name: str) -> list[str]:
        """The texts of the list `name`, which must hold at least one. Raises SourceError."""
        values = self.get(name)
        if not isinstance(values, list) or not values:
            raise SourceError(f"{self.origin}: field {name} is {shown(values)}, expected a list of texts")
        return [self.filled(name, value) for value in values]

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
        field_name = f"{self.origin}: field {name}"
        if not isinstance(value, str) or not value.strip():
            raise SourceError(f"{field_name} is {shown(value)}, expected a text")
        if (fault := control_character(value)) is not None:
            raise SourceError(f"{field_name} holds {fault}; take it out")
        if value.strip() in _MISSING:
            raise SourceError(f"{field_name} is {value.strip()}, which stands for a missing value")
        return value.strip()

    def _absence(self, names: Sequence[str]) -> str:
        """In what way the fields `names` are not there."""
        there = self.columns or [*self.fields]
        if {column.strip().casefold() for column in there} & {*names}:
            return "empty"
        found = ", ".join(map(shown, there))[:200]
        return f"missing; the {'columns' if self.columns else 'fields'} found are {found or 'none'}"


# ---- files ----


def read_records(path: Path, name: str | None = None) -> list[Record]:
    """The rows of a table (.csv, .tsv, .parquet), or of a file of JSON, an array or an object a line.

    `name` is what their origins call the file. Raises SourceError naming file and line.
    """
    suffix = path.suffix.lower()
    if suffix in (".xls", ".xlsx", ".ods"):
        raise SourceError(f"{path}: a {path.suffix} file cannot be read; save it as .csv, .parquet or JSON")
    read = {".csv": _csv_rows, ".tsv": _csv_rows, ".parquet": _parquet_rows}.get(suffix, _json_rows)
    records = [
        Record(fields, f"{name or path}{f':{line}' if line else ''} (row {row})", columns)
        for row, (line, fields, columns) in enumerate(read(path), start=1)
    ]
    if not records:
        raise SourceError(f"{path}: holds no rows")
    return records


def read_texts(path: Path) -> list[str]:
    """The strings of a JSON array, or the lines of any other text file that are not blank.

    Raises SourceError naming the file.
    """
    text = read_text(path)
    if path.suffix.lower() == ".json":
        with _refused_json(path, ""):
            values = json.loads(text, object_pairs_hook=unique_keys)
    else:
        if path.suffix.lower() in (".csv", ".tsv"):
            raise SourceError(f"{path}: is a table; give a JSON array of texts, or a text a line")
        values = text.split("\n")  # a text may hold other ends of lines, such as U+2028
        if any(re.match(r'\s*(\{\s*"|".*"\s*$)', value) for value in values):
            raise SourceError(f"{path}: holds JSON in its lines; give a JSON array of texts named .json")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise SourceError(f"{path}: expected a JSON array of texts")
    filled = [value.strip() for value in values if value.strip()]
    if not filled:
        raise SourceError(f"{path}: holds no text")
    for number, value in enumerate(filled, start=1):
        if (fault := control_character(value)) is not None:
            raise SourceError(f"{path}: text {number} holds {fault}; take it out")
    return filled


def read_text(path: Path) -> str:
    """The text of a file, UTF-8 with or without a mark. Raises SourceError naming file and line."""
    content = _read_bytes(path)
    place = content.find(b"\0")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        content, place = error.object, error.start  # without the mark
    if place >= 0:
        line = content.count(b"\n", 0, place) + 1
        raise SourceError(
            f"{path}:{line}: is not UTF-8 text; unpack an archive, save other text as UTF-8, and let the "
            "name of a parquet file end in .parquet"
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read_bytes(path: Path) -> bytes:
    """The bytes of a regular file: a pipe might never end. Raises SourceError."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise SourceError(f"{path}: cannot be read (it is no regular file)")
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from None


_Rows = Iterator[tuple[int, dict[str, Any], Sequence[str]]]
"""The line that a row begins on (0 where there are none), its filled fields, and its table's columns."""


def _json_rows(path: Path) -> _Rows:
    """Objects of one array, or one after the other; decoded one by one, so that a row's line is known.

    A string in an array is a row with the field `text` alone.
    """
    text, decoder = read_text(path), json.JSONDecoder(object_pairs_hook=unique_keys)
    place, line, row = 0, 1, 0
    between, is_array = " \t\r\n", text.lstrip().startswith("[")
    if is_array:
        place, between = text.index("[") + 1, " \t\r\n,"
        line += text.count("\n", 0, place)
    while True:
        start = place
        while place < len(text) and text[place] in between:
            place += 1
        line += text.count("\n", start, place)
        if place == len(text) or (is_array and text[place] == "]"):
            break
        row, start = row + 1, place
        with _refused_json(path, f":{line}", f" (row {row})"):
            value, place = decoder.raw_decode(text, start)
        if is_array and isinstance(value, str):  # as MUSE publishes its texts
            value = {"text": value}
        if not isinstance(value, dict):
            raise SourceError(f"{path}:{line}: is {shown(value)}, expected an object with named fields")
        yield line, value, ()
        line += text.count("\n", start, place)
    if is_array and place == len(text):
        raise SourceError(f"{path}:{line}: the array is not closed; is the file cut off?")
    if is_array and text[place + 1 :].strip():
        raise SourceError(f"{path}:{line}: goes on after the array that the file begins with")


@contextmanager
def _refused_json(path: Path, line: str, row: str = "") -> Iterator[None]:
    """Turn what json raises into a SourceError that names the file and the place in it."""
    try:
        yield
    except json.JSONDecodeError as error:
        hint = "; a table must be named .csv, .tsv or .parquet" if row == " (row 1)" else ""
        raise SourceError(f"{path}:{error.lineno}: is not JSON ({error.msg}){hint}") from None
    except RepeatedKeyError as error:
        raise SourceError(
            f"{path}{line}{row}: key {shown(error.key)} is there twice; keep one of them"
        ) from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        raise SourceError(f"{path}{line}: cannot be read ({error})") from None


def _csv_rows(path: Path) -> _Rows:
    """An empty cell counts as a missing field.

    The delimiter is the one of comma, semicolon and tab that is most often in the header; in .tsv files it is
    a tab.
    """
    text = read_text(path)
    csv.field_size_limit(2**31 - 1)  # a cell may hold a whole text
    header = text.lstrip().partition("\n")[0]
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line, names = 1, list[str]()
    try:
        for cells in reader:
            if cells and not names:
                names = _header(f"{path}:{line}", cells)
            elif cells and len(cells) != len(names):
                raise SourceError(f"{path}:{line}: has {len(cells)} columns, the header {len(names)}")
            elif cells:
                yield line, {name: one for name, one in zip(names, cells, strict=True) if one.strip()}, names
            line = reader.line_num + 1
    except csv.Error as error:
        raise SourceError(f"{path}:{line}: is not CSV ({error})") from None


def _parquet_rows(path: Path) -> _Rows:
    """Null and NaN count as missing fields."""
    try:
        table = pq.ParquetFile(io.BytesIO(_read_bytes(path))).read()
        rows = table.to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise SourceError(f"{path}: is no readable parquet file ({reason})") from None
    names = _header(str(path), table.column_names)
    for row in rows:
        missing = [key for key, value in row.items() if value is None or value != value]
        yield 0, {name.strip(): value for name, value in row.items() if name not in missing}, names


def _header(where: str, cells: Sequence[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    folded = [name.casefold() for name in names]
    for name in names:
        if folded.count(name.casefold()) > 1:
            raise SourceError(f"{where}: column {shown(name)} is there twice")
    return names


# ---- a benchmark's tables ----


@dataclass(frozen=True)
class Table:
    """One table of a benchmark.

    Attributes:
        file: its path in a folder, without suffix.
        config, split: its names in the data set on the Hub; "" for a config that is called as the file is.
    """

    file: str
    config: str = ""
    split: str = "train"


def open_source(name: str) -> Source:
    """A folder, if there is one of this name; otherwise a data set on the Hub ("owner/name").

    Raises SourceError when `name` can be neither.
    """
    if name and Path(name).is_dir():
        return FolderSource(Path(name))
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return HubSource(name)
    raise SourceError(f"{name}: no such folder, and not the name of a Hugging Face data set (owner/name)")


@dataclass
class FolderSource:
    """Files named as `Table.file` with one of SUFFIXES; `hashes` are SHA-256 of those that were read."""

    folder: Path
    hashes: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def has(self, table: Table) -> bool:
        """Whether the table can be read."""
        return self._path(table) is not None

    def read(self, table: Table) -> list[Record]:
        """Its rows. Raises SourceError."""
        path = self._path(table)
        if path is None:
            expected = ", ".join(f"{table.file}{suffix}" for suffix in SUFFIXES)
            raise SourceError(f"{self.folder}: none of {expected} is there")
        name = path.relative_to(self.folder).as_posix()
        self.hashes[name] = file_sha256(path)
        return cleaned(read_records(path, f"{self.name}/{name}"))

    def _path(self, table: Table) -> Path | None:
        paths = (self.folder / f"{table.file}{suffix}" for suffix in SUFFIXES)
        return next((path for path in paths if path.is_file()), None)


@dataclass
class HubSource:
    """Configurations of a data set, through the library `datasets`; `hashes` are SHA-256 of rows read."""

    name: str
    hashes: dict[str, str] = field(default_factory=dict)

    def has(self, table: Table) -> bool:
        """Whether the data set has the table's configuration. Raises SourceError."""
        # The library takes seconds to import, and folders do not need it.
        from datasets import get_dataset_config_names

        with refused_by_the_hub(self.name):
            return (table.config or table.file) in get_dataset_config_names(self.name)

    def read(self, table: Table) -> list[Record]:
        """Its rows. Raises SourceError."""
        from datasets import load_dataset

        config = table.config or table.file
        where = f"{self.name} ({config}, {table.split})"
        with refused_by_the_hub(where):
            rows = list(load_dataset(self.name, config, split=table.split))
        lines = (json.dumps(row, sort_keys=True, default=str) + "\n" for row in rows)
        self.hashes[f"{config}/{table.split}"] = hashlib.sha256("".join(lines).encode()).hexdigest()
        return cleaned([Record(fields, f"{where} row {row}") for row, fields in enumerate(rows, start=1)])


Source = FolderSource | HubSource


@contextmanager
def refused_by_the_hub(where: str) -> Iterator[None]:
    """Makes a SourceError of what the libraries raise for a data set that is not there or not whole."""
    from datasets.exceptions import DatasetsError

    try:
        yield
    except (DatasetsError, OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SourceError(f"{where}: is no folder, and cannot be loaded from the Hub: {reason}") from None


def cleaned(records: list[Record]) -> list[Record]:
    """The records without control characters, which published files hold; a warning names the first.

    Nobody can be asked to mend a published file. In files of one's own such characters are refused.
    """

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return CONTROL.sub("", value)
        if isinstance(value, Mapping):
            return {key: clean(inner) for key, inner in value.items()}
        return [clean(inner) for inner in value] if isinstance(value, list) else value

    cleaned = [replace(record, fields=clean(record.fields)) for record in records]
    changed = [after.origin for before, after in zip(records, cleaned, strict=True) if before != after]
    if changed:
        count = f"{len(changed)} row{'s' if len(changed) > 1 else ''}"
        print(f"warning: {changed[0]}: control characters taken out of {count}", file=sys.stderr, flush=True)
    return cleaned
