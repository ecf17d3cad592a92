"""Golden files: what the commands gave on small fixed inputs, kept as JSON in this folder.

`check(name, found)` compares `found` with NAME.json: numbers within a tolerance, all else exactly. With
RERULE_WRITE_GOLDEN=1 it writes the file instead where something differs; `REWRITTEN` has what it wrote.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
RELATIVE, ABSOLUTE = 1e-6, 1e-9
"""Differences of two numbers that are allowed; a file may ask for larger ones."""
_ROUNDED = re.compile(r"(?<![\w.])-?\d+\.\d+(?![\w.])")
"""A number with decimals in a text."""
MOST_SHOWN = 20
WIDTH = 110
MOST_FILLED = 20
"""Letters of a value that shares a line with its neighbours in a list."""

REWRITTEN: dict[str, list[str]] = {}
"""Of each file that was written: what differed."""


def check(name: str, found: Any, relative: float = RELATIVE, absolute: float = ABSOLUTE) -> None:
    """Compare `found` with NAME.json, or write it. Fails with the first differences and their places."""
    path, found = FOLDER / f"{name}.json", json.loads(text(found))
    kept = json.loads(path.read_text("utf-8")) if path.is_file() else None
    different = list(differences(kept, found, relative, absolute))
    if not different:
        return
    if os.environ.get("RERULE_WRITE_GOLDEN"):
        path.write_text(text(found), "utf-8")
        REWRITTEN[path.name] = different
        return
    more = f"\n... and {len(different) - MOST_SHOWN} more" if len(different) > MOST_SHOWN else ""
    shown = "\n".join(different[:MOST_SHOWN])
    pytest.fail(
        f"{path.name} keeps other values. If the difference is wanted, write the files anew with "
        f"RERULE_WRITE_GOLDEN=1 and add a line to CHANGELOG.md.\n{shown}{more}",
        pytrace=False,
    )


def differences(kept: Any, found: Any, relative: float, absolute: float, place: str = "") -> Iterator[str]:
    """A line for each place at which two values of JSON differ: place, kept value, found value."""
    if isinstance(kept, dict) and isinstance(found, dict):
        for key in [*kept, *(key for key in found if key not in kept)]:
            within = f"{place}/{key}"
            if key not in found:
                yield f"{within}: {_short(kept[key])} -> nothing"
            elif key not in kept:
                yield f"{within}: nothing -> {_short(found[key])}"
            else:
                yield from differences(kept[key], found[key], relative, absolute, within)
    elif isinstance(kept, list) and isinstance(found, list) and len(kept) == len(found):
        for number, (one, other) in enumerate(zip(kept, found, strict=True)):
            yield from differences(one, other, relative, absolute, f"{place}[{number}]")
    elif isinstance(kept, list) and isinstance(found, list):
        yield f"{place}: {len(kept)} entries -> {len(found)}: {_first_other(kept, found)}"
    elif not _same(kept, found, relative, absolute):
        yield f"{place}: {_short(kept)} -> {_short(found)}"


def _same(kept: Any, found: Any, relative: float, absolute: float) -> bool:
    if _is_number(kept) and _is_number(found):
        return math.isclose(kept, found, rel_tol=relative, abs_tol=absolute)
    if isinstance(kept, str) and isinstance(found, str):
        return kept == found or _same_text(kept, found)
    return type(kept) is type(found) and kept == found


def _same_text(kept: str, found: str) -> bool:
    """Whether two texts differ in the last digit of rounded numbers alone, and there by one."""
    if _ROUNDED.split(kept) != _ROUNDED.split(found):
        return False
    pairs = zip(_ROUNDED.finditer(kept), _ROUNDED.finditer(found), strict=True)
    return all(
        len(one[0].split(".")[1]) == len(other[0].split(".")[1])
        and abs(float(one[0]) - float(other[0])) < 1.5 * 10 ** -len(one[0].split(".")[1])
        for one, other in pairs
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _first_other(kept: list[Any], found: list[Any]) -> str:
    """The first entry that one of the lists has in another place or not at all."""
    number = next((n for n, (one, other) in enumerate(zip(kept, found, strict=False)) if one != other), None)
    if number is None:
        number = min(len(kept), len(found))
    return f"at {number}, {_short(kept[number : number + 1])} -> {_short(found[number : number + 1])}"


def _short(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 300 else f"{shown[:300]}..."


def text(value: Any) -> str:
    """A value as JSON that a person can read: what fits into a line is one, and floats have ten digits."""
    return _lines(_plain(value), "") + "\n"


def _plain(value: Any) -> Any:
    """With mappings, lists, texts, numbers, true, false and null alone; NaN and infinity are texts."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.10g}") if math.isfinite(value) else str(value)
    if hasattr(value, "item"):
        return _plain(value.item())
    return value


def _lines(value: Any, indent: str) -> str:
    whole = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(whole) <= WIDTH or not value or not isinstance(value, dict | list):
        return whole
    within = f"{indent} "
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: {_lines(one, within)}" for key, one in value.items()
        ]
        return "{\n" + ",\n".join(f"{within}{part}" for part in parts) + f"\n{indent}}}"
    parts = [_lines(one, within) for one in value]
    if all(_is_small(one) for one in value):
        parts = _filled(parts, WIDTH - len(within))
    return "[\n" + ",\n".join(f"{within}{part}" for part in parts) + f"\n{indent}]"


def _is_small(value: Any) -> bool:
    return not isinstance(value, dict | list) and len(str(value)) <= MOST_FILLED


def _filled(parts: list[str], width: int) -> list[str]:
    """As many neighbours in a line as there is room for."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 2 < width:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return lines


_NEUTRAL = (
    (re.compile(r"\b[0-9a-f]{64}\b"), "SHA256"),
    (re.compile(r"\b\d+(\.\d+)? s\b"), "N s"),
    (re.compile(r"\b\d+(\.\d+)? GB (are )?free"), "N GB free"),
    (re.compile(r"\bloss \d+\.\d+"), "loss X"),
    (re.compile(r"127\.0\.0\.1:\d+"), "SERVER"),
)
"""What differs between two runs or machines, and what stands in its place."""


def neutral(said: str, work: Path) -> str:
    """A text with WORK and ROOT for the folders of this run, and without what differs between machines."""
    for folder, name in ((work, "WORK"), (ROOT, "ROOT")):
        said = said.replace(str(folder), name)
    for pattern, instead in _NEUTRAL:
        said = pattern.sub(instead, said)
    return said


def neutral_all(value: Any, work: Path) -> Any:
    """`neutral` of all texts in a value of JSON, keys included."""
    if isinstance(value, Mapping):
        return {neutral(str(key), work): neutral_all(one, work) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [neutral_all(one, work) for one in value]
    return neutral(value, work) if isinstance(value, str) else value
