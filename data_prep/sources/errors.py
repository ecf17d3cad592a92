"""What raw material that cannot be used raises, and how its messages show a value."""

from __future__ import annotations

import reprlib
from typing import Any

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60
_LONGEST = 60


class SourceError(ValueError):
    """Raw material is missing or not as expected; the message is one line naming file and line."""


def shown(value: Any) -> str:
    """A value for a message: one short line, however long or deeply nested the value is."""
    return _REPR.repr(value)[:_LONGEST]
