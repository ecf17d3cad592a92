"""How far a run is: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm

from recipe.rerule.process import Progress

_WHAT, _UNIT = "generate", "requests"


class Display:
    """A context manager; nothing is shown where there is nothing to ask."""

    def __init__(self, total: int) -> None:
        self._terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=total, desc=_WHAT, unit=_UNIT.removesuffix("s"), disable=not (self._terminal and total)
        )
        self._lines = Progress(_WHAT, total, _UNIT)
        self._failed = 0

    def __enter__(self) -> Display:
        if not self._terminal:
            self._lines.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        if not self._terminal:
            self._lines.__exit__(kind, error, trace)

    def settled(self, *, failed: bool) -> None:
        """A request has its answer, or has failed."""
        self._failed += failed
        self._bar.update()
        self._lines.advance()

    def trouble(self, reason: str) -> None:
        """An attempt missed its answer."""
        text = f"{self._failed} failed; the latest trouble: {reason}"
        self._bar.set_postfix_str(text)
        self._lines.doing(text)
