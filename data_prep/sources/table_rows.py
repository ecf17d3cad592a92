"""Rows of tables: CSV with commas, semicolons or tabs, parquet, and the first sheet of an Excel file."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.sources.errors import SourceError, shown
from data_prep.sources.text_files import read_bytes, read_text

Rows = Iterator[tuple[int, dict[str, Any], Sequence[str]]]
"""The line (of parquet, the row) from 1 that a row stands on, its filled cells by column, and all columns."""

_DELIMITERS = ",;\t"


def csv_rows(path: Path) -> Rows:
    """Rows of a CSV file; an empty cell counts as a missing field. Raises SourceError naming file and line.

    The delimiter is the one that cuts the header into the most columns; in .tsv files it is a tab.
    """
    text = read_text(path)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(_DELIMITERS, key=lambda d: _columns(text, d))
    yield from _rows_below_header(path, _csv_lines(path, text, delimiter))


def parquet_rows(path: Path) -> Rows:
    """Rows of a parquet file; null and NaN count as missing fields. Raises SourceError."""
    try:
        table = pq.ParquetFile(io.BytesIO(read_bytes(path))).read()
        rows = table.to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise SourceError(f"{path}: is no readable parquet file ({reason})") from None
    names = _header(str(path), table.column_names)
    for number, row in enumerate(rows, start=1):
        yield number, {name.strip(): value for name, value in row.items() if not _is_missing(value)}, names


def excel_rows(path: Path) -> Rows:
    """Rows of an Excel file's first sheet, each cell as text. Raises SourceError.

    Needs the package openpyxl, which the project does not depend on.
    """
    if importlib.util.find_spec("openpyxl") is None:
        raise SourceError(
            f"{path}: reading an Excel file needs the package openpyxl, which is not installed: run pip "
            "install openpyxl, or save the sheet as CSV"
        )
    import pandas

    content = io.BytesIO(read_bytes(path))
    try:
        sheet = pandas.read_excel(content, header=None, dtype=str, keep_default_na=False, engine="openpyxl")
    except Exception as error:  # openpyxl lets errors of any kind through where a file is not what it seems
        reason = " ".join(f"{type(error).__name__} {error}".split())[:120]
        raise SourceError(f"{path}: is no readable Excel file ({reason})") from None
    lines = enumerate(sheet.itertuples(index=False), start=1)
    yield from _rows_below_header(path, ((line, [*map(str, cells)]) for line, cells in lines if any(cells)))


def _rows_below_header(path: Path, lines: Iterable[tuple[int, Sequence[str]]]) -> Rows:
    names: Sequence[str] = ()
    for line, cells in lines:
        if not names:
            names = _header(f"{path}:{line}", cells)
            continue
        if len(cells) != len(names):
            raise SourceError(f"{path}:{line}: has {len(cells)} columns, the header {len(names)}")
        yield line, {name: cell for name, cell in zip(names, cells, strict=True) if cell.strip()}, names


def _csv_lines(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, Sequence[str]]]:
    """Cells that are not on a blank line, with the line that they begin on."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise SourceError(f"{path}:{line}: is not CSV ({error})") from None


def _columns(text: str, delimiter: str) -> int:
    """Columns of the header with this delimiter; 0 where it is no CSV."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        return next((len(cells) for cells in reader if cells), 0)
    except csv.Error:
        return 0


def _header(where: str, cells: Sequence[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    folded = [name.casefold() for name in names]
    for name in names:
        if folded.count(name.casefold()) > 1:
            raise SourceError(f"{where}: column {shown(name)} is there twice")
    return names


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
