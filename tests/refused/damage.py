"""Ways to damage a JSON text, one at a time: cut off, a value of another kind, a key gone or there twice."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]
DEEP = "[" * 10_000
HUGE = 10**400
_OTHERS: dict[str, Any] = {
    "null": None,
    "text": "x",
    "empty list": [],
    "object": {"x": {}},
    "NaN": float("nan"),
    "infinity": float("inf"),
    "a large number": 1e308,
    "a huge whole number": HUGE,
    "a negative number": -57.5,
    "true": True,
}


def damaged(value: Any, *, lines: bool = False, every: int = 1) -> Iterator[tuple[str, str]]:
    """Names and texts; `lines`: the value is a list written as JSON lines; `every`: that many of a kind."""
    whole = written(value, lines)
    for place in range(0, len(whole), max(1, len(whole) // max(1, 40 // every))):
        yield f"cut at {place}", whole[:place]
    yield "deep", DEEP
    yield "deep in its place", whole.replace(":", f': {DEEP + "]" * 10_000}, "more":', 1)
    yield "bytes", whole[: len(whole) // 2] + "\udcff" + whole[len(whole) // 2 :]
    for number, path in enumerate(paths(value)):
        for kind, other in enumerate(_OTHERS):
            if (number + kind) % every == 0:
                name = f"{'/'.join(map(str, path))} is {other}"
                yield name, written(changed(value, path, _OTHERS[other]), lines)
        if path and isinstance(path[-1], str) and number % every == 0:
            yield f"{'/'.join(map(str, path))} is gone", written(changed(value, path, None, gone=True), lines)
            yield f"{'/'.join(map(str, path))} is there twice", twice(whole, path[-1])


def written(value: Any, lines: bool) -> str:
    if lines and isinstance(value, list):
        return "".join(json.dumps(row) + "\n" for row in value)
    return json.dumps(value)


def twice(text: str, key: str) -> str:
    """The first of the key's occurrences stands twice."""
    return text.replace(f'"{key}": ', f'"{key}": 0, "{key}": ', 1)


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """Where there is a value: of each list the first element and the last."""
    yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, (*at, key))
    if isinstance(value, list) and value:
        for place in sorted({0, len(value) - 1}):
            yield from paths(value[place], (*at, place))


def changed(value: Any, path: Path, other: Any, *, gone: bool = False) -> Any:
    """A copy with another value at the path, or without its key."""
    if not path:
        return other
    made = copy.deepcopy(value)
    inner = made
    for step in path[:-1]:
        inner = inner[step]
    if gone:
        del inner[path[-1]]
    else:
        inner[path[-1]] = other
    return made
