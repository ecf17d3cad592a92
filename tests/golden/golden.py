"""Golden files: what the commands gave on small fixed inputs, kept as JSON in this folder.

With RERULE_WRITE_GOLDEN=1 `check` writes a file anew where something differs; `git diff` then shows it.
"""

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
MOST_SHOWN = 20
WIDTH = 110
_ROUNDED = re.compile(r"(?<![\w.])-?\d+\.(\d+)(?![\w.])")
"""A number with decimals in a text, and its decimals."""
_NEUTRAL = {
    r"\b[0-9a-f]{64}\b": "SHA256",
    r"\b\d+(\.\d+)? s\b": "N s",
    r"\b\d+(\.\d+)? GB (are )?free": "N GB free",
    r"\bloss \d+\.\d+": "loss X",
    r"127\.0\.0\.1:\d+": "SERVER",
}
"""What differs between two runs or machines, and what stands in its place."""


def check(
    name: str, found: Any, work: Path | None = None, relative: float = 1e-6, absolute: float = 1e-9
) -> None:
    """Compare what was made in the folder `work` with NAME.json: numbers within a tolerance, else exactly."""
    path = FOLDER / f"{name}.json"
    found = json.loads(
        json.dumps(found, default=lambda number: number.item()),
        parse_float=lambda number: float(f"{float(number):.10g}"),
        parse_constant=str,
    )
    found = found if work is None else neutral(found, work)
    old = dict(_leaves(json.loads(path.read_text("utf-8")))) if path.is_file() else {}
    new = dict(_leaves(found))
    different = [
        f"{place}: {_short(old, place)} -> {_short(new, place)}"
        for place in old | new
        if place not in old or place not in new or not _same(old[place], new[place], relative, absolute)
    ]
    if different and os.environ.get("RERULE_WRITE_GOLDEN"):
        path.write_text(_text(found) + "\n", "utf-8")
    elif different:
        pytest.fail(
            f"{path.name} keeps other values in {len(different)} places. If that is wanted, write the "
            "files anew with RERULE_WRITE_GOLDEN=1 and add a line to CHANGELOG.md.\n"
            + "\n".join(different[:MOST_SHOWN]),
            pytrace=False,
        )


def neutral(value: Any, work: Path) -> Any:
    """JSON with WORK and ROOT for folders in its texts, and without what differs between machines."""
    if isinstance(value, dict):
        return {neutral(str(key), work): neutral(one, work) for key, one in value.items()}
    if isinstance(value, list):
        return [neutral(one, work) for one in value]
    if not isinstance(value, str):
        return value
    value = value.replace(str(work), "WORK").replace(str(ROOT), "ROOT")
    for pattern, instead in _NEUTRAL.items():
        value = re.sub(pattern, instead, value)
    return value


def _leaves(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Each value in a value of JSON that is no object and no list, with its place."""
    if not value or not isinstance(value, dict | list):
        yield place, value
        return
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(one, (*place, key))


def _short(leaves: dict[tuple[str | int, ...], Any], place: tuple[str | int, ...]) -> str:
    return json.dumps(leaves[place], ensure_ascii=False)[:300] if place in leaves else "nothing"


def _same(kept: Any, found: Any, relative: float, absolute: float) -> bool:
    """Whether two leaves are the same; of rounded numbers in a text the last digit may differ by one."""
    if type(kept) in (int, float) and type(found) in (int, float):
        return math.isclose(kept, found, rel_tol=relative, abs_tol=absolute)
    if not isinstance(kept, str) or not isinstance(found, str) or kept == found:
        return type(kept) is type(found) and kept == found
    pairs = zip(_ROUNDED.finditer(kept), _ROUNDED.finditer(found), strict=False)
    return _ROUNDED.sub("", kept) == _ROUNDED.sub("", found) and all(
        len(one[1]) == len(other[1]) and abs(float(one[0]) - float(other[0])) < 1.5 * 10 ** -len(one[1])
        for one, other in pairs
    )


def _text(value: Any, indent: str = "") -> str:
    """JSON that a person can read: what fits into a line is one, and short values stand side by side."""
    whole = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(whole) <= WIDTH or not isinstance(value, dict | list):
        return whole
    within, parts, beside = f"{indent} ", list[str](), False
    of_dict = isinstance(value, dict)
    for key, one in value.items() if of_dict else enumerate(value):
        part = _text(one, within)
        # Sentences, dictionaries and what a dictionary has in lists get lines of their own.
        short = "\n" not in part and not isinstance(one, dict | list if of_dict else dict)
        short = short and (of_dict or " " not in str(one) or not isinstance(one, str))
        part = f"{json.dumps(key, ensure_ascii=False)}: {part}" if of_dict else part
        if beside and short and len(f"{within}{parts[-1]}, {part},") <= WIDTH:
            parts[-1] += f", {part}"
        else:
            parts.append(part)
        beside = short
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    return f"{opened}\n" + ",\n".join(f"{within}{part}" for part in parts) + f"\n{indent}{closed}"
