"""A benchmark's tables by name, from a folder of files or from a Hugging Face data set."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from data_prep.sources.errors import SourceError
from data_prep.sources.records import Record, read_records
from data_prep.text import CONTROL

SUFFIXES = (".json", ".jsonl", ".csv")


@dataclass(frozen=True)
class Table:
    """One table of a benchmark.

    Attributes:
        file: its path in a folder, without suffix.
        config, split: its names in the data set on the Hub.
    """

    file: str
    config: str
    split: str


class Source(Protocol):
    """Where a benchmark's tables come from.

    Attributes:
        name: the data set's name on the Hub, or the folder's own.
        hashes: SHA-256 by table read, for the manifest.
    """

    @property
    def name(self) -> str:
        """See above."""

    @property
    def hashes(self) -> dict[str, str]:
        """See above."""

    def has(self, table: Table) -> bool:
        """Whether the table can be read."""

    def read(self, table: Table) -> list[Record]:
        """Its rows. Raises SourceError."""


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
    """Files named as `Table.file` with one of SUFFIXES."""

    folder: Path
    hashes: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def has(self, table: Table) -> bool:
        return self._path(table) is not None

    def read(self, table: Table) -> list[Record]:
        path = self._path(table)
        if path is None:
            expected = ", ".join(f"{table.file}{suffix}" for suffix in SUFFIXES)
            raise SourceError(f"{self.folder}: none of {expected} is there")
        name = path.relative_to(self.folder).as_posix()
        self.hashes[name] = sha256_of_file(path)
        return cleaned(read_records(path, f"{self.name}/{name}"))

    def _path(self, table: Table) -> Path | None:
        paths = (self.folder / f"{table.file}{suffix}" for suffix in SUFFIXES)
        return next((path for path in paths if path.is_file()), None)


@dataclass
class HubSource:
    """Configurations of a data set, through the library `datasets` and its cache."""

    name: str
    hashes: dict[str, str] = field(default_factory=dict)

    def has(self, table: Table) -> bool:
        # The library takes seconds to import, and folders do not need it.
        from datasets import get_dataset_config_names

        with _one_line_errors(self.name):
            return table.config in get_dataset_config_names(self.name)

    def read(self, table: Table) -> list[Record]:
        from datasets import load_dataset

        where = f"{self.name} ({table.config}, {table.split})"
        with _one_line_errors(where):
            rows = list(load_dataset(self.name, table.config, split=table.split))
        self.hashes[f"{table.config}/{table.split}"] = _sha256_of_rows(rows)
        return cleaned([Record(fields, f"{where} row {row}") for row, fields in enumerate(rows, start=1)])


@contextmanager
def _one_line_errors(where: str) -> Iterator[None]:
    """Makes a SourceError of what the library raises for a data set that is not there or not whole."""
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
    clean = [replace(record, fields=_without_control(record.fields)) for record in records]
    changed = [after.origin for before, after in zip(records, clean, strict=True) if before != after]
    if changed:
        count = f"{len(changed)} row{'s' if len(changed) > 1 else ''}"
        print(f"warning: {changed[0]}: control characters taken out of {count}", file=sys.stderr, flush=True)
    return clean


def _without_control(value: Any) -> Any:
    if isinstance(value, str):
        return CONTROL.sub("", value)
    if isinstance(value, Mapping):
        return {key: _without_control(inner) for key, inner in value.items()}
    return [_without_control(inner) for inner in value] if isinstance(value, list) else value


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sha256_of_rows(rows: Iterable[dict[str, Any]]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()
