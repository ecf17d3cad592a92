"""Files of records, a probe and its answer each: what every benchmark's reader shares."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]

_RESPONSE_FIELDS = ("response", "prediction", "predict")


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
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a readable text file ({error})") from error
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        return _lines(path, text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from error
    if isinstance(whole, dict):
        whole = whole["results"] if isinstance(whole.get("results"), list) else [whole]
    if not isinstance(whole, list):
        raise ValueError(f"{path}: holds neither records nor a list of them")
    return whole


def _lines(path: Path, text: str) -> list[Any]:
    # Not splitlines(): JSON may hold U+2028 and the like as they are.
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise ValueError(f"{path}: line {number} is not JSON ({reason})") from error
    return rows


def answer_of(row: Mapping[str, Any], where: str) -> Record:
    """{model, response} of a row, which alone may be empty. Raises ValueError."""
    names = [name for name in _RESPONSE_FIELDS if name in row]
    if len(names) != 1:
        raise ValueError(
            f"{where}: has {' and '.join(names) or 'no answer'}; exactly one of "
            f"{', '.join(_RESPONSE_FIELDS)} is expected"
        )
    response, model = row[names[0]], row.get("model", "")
    for name, value in ((names[0], response), ("model", model)):
        if not isinstance(value, str):
            raise ValueError(f"{where}: {name} is {value!r}, expected text")
    return {"model": model, "response": response}


def golds_of(row: Mapping[str, Any], where: str) -> list[str]:
    """The right answers of a row, at least one. Raises ValueError."""
    golds = row.get("golds")
    if not isinstance(golds, list) or not golds:
        raise ValueError(f"{where}: golds is {golds!r}, expected a list of right answers")
    return [text_of({"golds": gold}, "golds", where) for gold in golds]


def text_of(row: Mapping[str, Any], name: str, where: str) -> str:
    """The text of a field, which must not be blank. Raises ValueError naming row and field."""
    if name not in row:
        raise ValueError(f"{where}: {name} is missing")
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {name} is {value!r}, expected text")
    return value
