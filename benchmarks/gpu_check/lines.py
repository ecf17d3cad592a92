"""The lines of the check's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One measured number.

    part: of the check; what: was measured; value: in `unit`.
    limit: largest value that passes; None for a number that is only reported.
    """

    part: str
    what: str
    value: float
    unit: str = ""
    limit: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the value is a number within its limit; True without a limit."""
        return self.limit is None or self.value <= self.limit


def table(lines: Sequence[Line]) -> str:
    """The lines as a Markdown table."""
    head = "| part | what | value | limit | |\n| --- | --- | ---: | ---: | --- |"
    return "\n".join([head, *map(_row, lines)])


def _row(line: Line) -> str:
    value = f"{line.value:.3g} {line.unit}".strip()
    limit = "" if line.limit is None else f"{line.limit:.3g}"
    verdict = "" if line.limit is None else ("passed" if line.passed else "FAILED")
    return f"| {line.part} | {line.what} | {value} | {limit} | {verdict} |"
