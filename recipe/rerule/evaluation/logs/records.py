"""Files of records, a probe and its answer each: what every benchmark's reader shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.logs.kinds import RESPONSES, first_row
from recipe.rerule.io import read_json, read_lines

Record = dict[str, Any]

_SHOWN = 60


def by_model(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each model, models in order of first appearance; "" where no model is named."""
    models: dict[str, list[Record]] = {}
    for record in records:
        models.setdefault(record.get("model", ""), []).append(record)
    return models


def read_rows(path: Path) -> list[Any]:
    """The rows of JSON lines, of a JSON array, or of an object that holds the array as `results`.

    Raises:
        ValueError: no readable text, or none of these.
    """
    if isinstance(first_row(path), dict) and not _is_array(path):
        rows = [row for _, row in read_lines(path, nan=True)]
        return _results(rows[0]) if len(rows) == 1 else rows
    if path.is_file() and not path.read_bytes().strip():
        return []
    return _results(read_json(path, nan=True), path)


def _is_array(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b"[")


def _results(whole: Any, path: Path | None = None) -> list[Any]:
    """The rows of a JSON array, of an object that holds it as `results`, or the one object itself."""
    if isinstance(whole, dict):
        return whole["results"] if isinstance(whole.get("results"), list) else [whole]
    if not isinstance(whole, list):
        raise ValueError(f"{path} holds neither records nor a list of them")
    return whole


def answer_of(row: Mapping[str, Any], where: str) -> Record:
    """{model, response} of a row, which alone may be empty. Raises ValueError."""
    names = [name for name in RESPONSES if name in row]
    if len(names) != 1:
        raise ValueError(
            f"{where}: has {' and '.join(names) or 'no answer'}; exactly one of "
            f"{', '.join(RESPONSES)} is expected"
        )
    response, model = row[names[0]], row.get("model", "")
    for name, value in ((names[0], response), ("model", model)):
        if not isinstance(value, str):
            raise ValueError(f"{where}: {name} is {short(value)}, expected text")
    return {"model": model, "response": response}


def golds_of(row: Mapping[str, Any], where: str) -> list[str]:
    """The right answers of a row, at least one. Raises ValueError."""
    golds = row.get("golds")
    if not isinstance(golds, list) or not golds:
        raise ValueError(f"{where}: golds is {short(golds)}, expected a list of right answers")
    return [text_of({"golds": gold}, "golds", where) for gold in golds]


def text_of(row: Mapping[str, Any], name: str, where: str) -> str:
    """The text of a field, which must not be blank. Raises ValueError naming row and field."""
    if name not in row:
        raise ValueError(f"{where}: {name} is missing")
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {name} is {short(value)}, expected text")
    return value


def short(value: Any) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
