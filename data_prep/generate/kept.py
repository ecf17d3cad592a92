"""Records kept on disk as they come, a JSON object a line, so that what was killed asks only for the rest.

A kill can tear the last line of a file alone. A line that is not a whole object counts for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

SUFFIX = ".jsonl"
"""How the name of a file of such records ends."""


def line_of(record: Mapping[str, Any]) -> bytes:
    """The line that keeps a record. Raises ValueError for NaN and Infinity, which are not JSON."""
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def record_of(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None where the line is torn or foreign."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def records_of(content: bytes) -> Iterator[dict[str, Any]]:
    """The records of a file's content; a last one whose line break alone is missing is whole."""
    # Split at line feeds alone: a JSON text may hold U+2028 and the like as they are.
    return (record for line in content.split(b"\n") if (record := record_of(line)) is not None)
