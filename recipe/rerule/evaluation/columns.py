"""A column of a table of results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Column:
    """A metric in the table.

    Attributes:
        metric: its key in results.json.
        group: heading over the section's columns.
        label: short heading.
        aim: what unlearning tries for; "zero" is as close to 0 as can be, from either side, "" is not said.
        scale: what the number is multiplied by to be shown: 100 where per cent is customary.
        spec: format of the number shown, as `format` takes it.
    """

    metric: str
    group: str
    label: str
    aim: Literal["low", "high", "zero", ""]
    scale: float = 1.0
    spec: str = ".3f"


PERCENT = (100.0, ".1f")
"""`scale` and `spec` of a fraction that is customarily shown in per cent."""
