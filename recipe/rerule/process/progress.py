"""Signs of life of work that takes longer than a few seconds: a line on stderr every SECONDS.

Lines rather than a bar: they can be read in the log of a scheduler as well as on a terminal.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

SECONDS = 5.0
"""Between two lines, and before the first one: what is over sooner prints nothing."""


class Progress:
    """A context manager that says every SECONDS what is being done, how far it is and how long it may take.

    Its lines come from a thread of its own, so that they come during one long step too.
    """

    def __init__(self, what: str, total: int = 0, unit: str = "") -> None:
        """`what`: begins every line. `total`: how many `unit`s there are to do, 0 where that is not known."""
        self._what = what
        self._total = total
        self._unit = unit
        self._done = 0
        self._doing = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Progress:
        self._started = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def advance(self) -> None:
        """One unit is done."""
        self._done += 1

    def doing(self, what: str) -> None:
        """What is being done now, or what else the line should say."""
        self._doing = what

    def line(self) -> str:
        """As it is printed: "generate: 12 of 400 requests, 30 s, about 970 s left; ..."."""
        spent = time.monotonic() - self._started
        parts = [f"{self._done} of {self._total} {self._unit}"] if self._total else []
        parts.append(f"{spent:.0f} s")
        if 0 < self._done < self._total:
            parts.append(f"about {spent / self._done * (self._total - self._done):.0f} s left")
        return f"{self._what}: {', '.join(parts)}" + (f"; {self._doing}" if self._doing else "")

    def _tell(self) -> None:
        while not self._over.wait(SECONDS):
            print(self.line(), file=sys.stderr, flush=True)
