"""How far a run is, and how long it and the runs after it will take: a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY = 30.0
"""Seconds between two lines."""


class Progress:
    """Told the share of a run that is done, prints how long is left.

    first: the share that was done before. runs_after: taken to be as long as this run.
    """

    def __init__(
        self, runs_after: int, first: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._after, self._first, self._clock = runs_after, first, clock
        self._began = self._said = clock()

    def __call__(self, share: float) -> None:
        """Hears the share in (0, 1] that is done."""
        now = self._clock()
        if now - self._said >= EVERY and share < 1:
            self._said = now
            print(f"    {self.line(share, now - self._began)}", flush=True)

    def line(self, share: float, seconds: float) -> str:
        """At this share, so many seconds after the first one."""
        whole = seconds / (share - self._first)
        left = whole * (1 - share)
        said = f"{share:.0%}, {minutes(left)} left"
        return said + (
            f"; with the {self._after} runs after it {minutes(left + self._after * whole)}"
            if self._after
            else ""
        )


def minutes(seconds: float) -> str:
    """A length of time in words, to the minute; below two minutes to the second."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    whole = round(seconds / 60)
    return f"{whole} min" if whole < 120 else f"{whole // 60} h {whole % 60} min"
