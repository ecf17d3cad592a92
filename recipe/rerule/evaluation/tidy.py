"""The tidy table: one row for each response of a model, with a column for each metric of that response.

`evaluate` and `attack` write it as `responses.parquet`. Every table of results is a groupby over it, and
every interval resamples its `fact` column.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # its import takes two seconds
    import pandas as pd

FILE = "responses.parquet"
ROW = ("model", "probe", "side", "kind", "fact", "sample", "prompt", "response")
"""What every row says: the model's name; the probe's index in its file; "forget", "retain" or another
section; the kind of question within it; the fact that it asks for; the number of the sample, from 0; the
prompt; and the response, "" where a metric is computed without one.

All other columns are metrics (float64, NaN where a metric does not apply to the row) and what else describes
the row: `evaluate model` adds family, subject and golds, the accepted answers. Attacks add the columns
`attack` and `setting`.
"""
_INTEGERS = ("probe", "sample")


def from_rows(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a table: the columns of ROW first, columns of numbers and truth values as float64.

    A row that lacks a column has NaN there.
    """
    import numpy as np
    import pandas as pd

    table = pd.DataFrame(list(rows))
    for name in table.columns.difference(_INTEGERS):
        known = [value for value in table[name] if value is not None]
        if known and all(isinstance(value, bool | int | float | np.number) for value in known):
            table[name] = table[name].astype(float)
    first = [name for name in ROW if name in table]
    return table[[*first, *table.columns.difference(first, sort=False)]]


def with_facts(
    rows: Sequence[Mapping[str, Any]], fact: Callable[[Mapping[str, Any]], Hashable]
) -> list[dict[str, Any]]:
    """The rows of one model, each with `fact`: what it says already, or its first probe that asks for the
    same."""
    first: dict[Hashable, str] = {}
    numbered = ((row, first.setdefault(fact(row), f"probe {row['probe']}")) for row in rows)
    return [{"fact": number, **row} for row, number in numbered]


def write(folder: Path, rows: pd.DataFrame) -> None:
    """Write the table into `folder`. Raises ValueError: a column of ROW is missing."""
    _check(rows, folder / FILE)
    rows.to_parquet(folder / FILE, index=False)


def read(path: Path) -> pd.DataFrame:
    """The table of an evaluation's or attack's folder, or of a file.

    Raises ValueError: no such file, no parquet, or a column of ROW is missing.
    """
    import pandas as pd

    file = path / FILE if path.is_dir() else path
    try:
        rows = pd.read_parquet(file)
    except FileNotFoundError as error:
        raise ValueError(f"{file} does not exist: no evaluation or attack wrote it") from error
    except (ValueError, OSError) as error:
        raise ValueError(f"{file} cannot be read as parquet, which evaluations write as {FILE}") from error
    _check(rows, file)
    return rows


def read_responses(path: Path) -> pd.DataFrame:
    """The table of an evaluation, checked in full.

    Raises ValueError as `read`, a column of ROW or golds of another type, or two rows of one response.
    """
    import pandas as pd

    rows = read(path)
    texts = [name for name in (*ROW, "family", "subject", "target") if name in rows and name not in _INTEGERS]
    wrong = [name for name in _INTEGERS if not pd.api.types.is_integer_dtype(rows[name])]
    wrong += [name for name in texts if not rows[name].map(lambda value: isinstance(value, str)).all()]
    if "golds" in rows and not rows["golds"].map(_is_texts).all():
        wrong.append("golds")
    if wrong:
        raise ValueError(f"{path}: column {wrong[0]} holds something that evaluate does not write there")
    if twice := first_repeated(rows):
        raise ValueError(f"{path} has two responses of one probe ({twice})")
    return rows


def first_repeated(rows: pd.DataFrame) -> str | None:
    """Which response a table has twice, in words; None where each is there once."""
    place = [name for name in ("model", "target", "side", "kind", "probe", "sample") if name in rows]
    twice = rows[rows.duplicated(place)]
    told = twice.iloc[0][place].items() if len(twice) else ()
    return ", ".join(f"{name} {value}" for name, value in told) or None


def _is_texts(value: Any) -> bool:
    return hasattr(value, "__len__") and len(value) > 0 and all(isinstance(one, str) for one in value)


def _check(rows: pd.DataFrame, path: Path) -> None:
    missing = [name for name in ROW if name not in rows.columns]
    if missing:
        raise ValueError(f"{path} has no column {missing[0]}; a tidy table has {', '.join(ROW)}")
