"""What a user can get wrong, as data: one list of cases a module `*_cases.py`, each with a test beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["refused", "warned", "valid"]
"""refused: one line that names it, exit code not 0, nothing written or lost.
warned: one line, and the command goes on.
valid: documented as allowed.
"""


@dataclass(frozen=True)
class Case:
    """One input that was tried.

    group: row of the table, such as "settings of stage 2".
    name: of the case, unique in its group.
    outcome: what must happen.
    """

    group: str
    name: str
    outcome: Outcome
