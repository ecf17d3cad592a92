"""The tidy table: one row for each response of a model, with a column for each metric of that response.

`evaluate` and `attack` write it as `responses.parquet`. Every table of results is a groupby over it, and
every interval resamples its `fact` column.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

FILE = "responses.parquet"
ROW = ("model", "probe", "side", "kind", "fact", "sample", "prompt", "response")
"""What every row says: the model's name; the probe's index in its file; "forget", "retain" or another
section; the kind of question within it; the fact that it asks for, "" where none is named; the number of the
sample, from 0; the prompt; and the response, "" where a metric is computed without one.

All other columns are metrics (float64, NaN where a metric does not apply to the row) and what else describes
the row. Attacks add the columns `attack` and `setting`.
"""


class TableError(ValueError):
    """A file is no tidy table; the message is one line that names it."""


def write(folder: Path, rows: pd.DataFrame) -> None:
    """Write the table into `folder`.

    Raises:
        TableError: a column of ROW is missing.
    """
    _check(rows, folder / FILE)
    rows.to_parquet(folder / FILE, index=False)


def read(folder: Path) -> pd.DataFrame:
    """The table of an evaluation's or attack's folder.

    Raises:
        TableError: no such file, no parquet, or a column of ROW is missing.
    """
    path = folder / FILE
    try:
        rows = pd.read_parquet(path)
    except FileNotFoundError as error:
        raise TableError(f"{folder} has no {FILE}: no evaluation or attack wrote it") from error
    except (ValueError, OSError) as error:
        raise TableError(f"{path} cannot be read as parquet") from error
    _check(rows, path)
    return rows


def _check(rows: pd.DataFrame, path: Path) -> None:
    missing = [name for name in ROW if name not in rows.columns]
    if missing:
        raise TableError(f"{path} has no column {missing[0]}; a tidy table has {', '.join(ROW)}")
