"""When a checkpoint is due by time."""

from __future__ import annotations

import time
from collections.abc import Callable


class SaveClock:
    """Runs from its making, or from the last checkpoint, whatever that was saved for."""

    def __init__(self, minutes: float | None, now: Callable[[], float] = time.monotonic) -> None:
        """`minutes` between checkpoints, or None for no end; `now`: seconds of a clock that only goes on."""
        self._limit = None if minutes is None else 60.0 * minutes
        self._now = now
        self._since = now()

    def is_due(self) -> bool:
        """Whether so many minutes have passed."""
        return self._limit is not None and self._now() - self._since >= self._limit

    def restart(self) -> None:
        """To be called when a checkpoint has been saved."""
        self._since = self._now()
