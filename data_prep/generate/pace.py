"""How fast to ask: waits that grow, and one pace for all workers."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime

from data_prep.generate.errors import BusyError, EndpointError

FIRST_WAIT = 1.0
"""Seconds of the first wait, at most; each further one is twice as long."""
LONGEST_WAIT = 60.0
PATIENCE = 600.0
"""How many seconds a server may only ask to slow down before the run stops."""
_GLANCE = 0.05


def backoff(failures: int) -> float:
    """Seconds to wait after the `failures`-th failure in a row (from 1), partly random: not all at once."""
    return random.uniform(0.5, 1.0) * min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(failures - 1, 30))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a Retry-After header asks for, given as a number or as a date; None where it does not."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        seconds = _seconds_until(value)
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _seconds_until(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, OverflowError):
        return math.nan


class Pace:
    """Turns for all workers of a run.

    After a "slow down" nobody gets a turn until the wait is over, and then only half as many at a time as
    before; each answer that comes widens it again (additive increase, multiplicative decrease, as in TCP).
    """

    def __init__(self, concurrency: int) -> None:
        self._most = concurrency
        self._width = float(concurrency)
        self._running = 0
        self._waits = 0
        self._open_at = 0.0
        self._busy_since: float | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits until a call may be made, and counts it as under way inside the block."""
        while (delay := self._delay()) > 0:
            await asyncio.sleep(delay)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def _delay(self) -> float:
        """Seconds until it is worth looking again; 0 when there is a turn."""
        wait = self._open_at - time.monotonic()
        if wait > 0:
            return wait
        return _GLANCE if self._running >= int(self._width) else 0.0

    def answered(self) -> None:
        """An answer came."""
        self._waits = 0
        self._width = min(self._most, self._width + 1 / self._width)
        self._busy_since = None

    def slow_down(self, busy: BusyError) -> None:
        """Holds everybody back. Raises EndpointError where that would go on for too long."""
        now = time.monotonic()
        self._busy_since = self._busy_since or now
        if now >= self._open_at:  # not one of those that were under way when the first was told
            self._waits += 1
            self._width = max(1.0, self._width / 2)
        wait = backoff(self._waits) if busy.retry_after is None else busy.retry_after
        self._open_at = max(self._open_at, now + wait)
        if self._open_at - self._busy_since > PATIENCE:
            raise EndpointError(
                f"the server only asks to slow down ({busy}; next in {self._open_at - now:.0f} s): "
                "run the same command later, what is finished is kept"
            )
