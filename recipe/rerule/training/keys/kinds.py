"""Kinds of values: what a setting accepts, and how that is said.

Every kind has `accepts(value)`, for plain values as in YAML, and `allowed`, which ends the sentence
"set it to ...".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

SEED_LIMIT = 2**31 - 1
"""The highest seed; the engines add their rank and hand the sum to numpy, which takes 32 bits."""


class Kind(Protocol):
    """What a setting accepts."""

    @property
    def allowed(self) -> str:
        """The allowed values as the end of a sentence."""

    def accepts(self, value: Any) -> bool:
        """Whether `value` is one of them."""


@dataclass(frozen=True)
class Number:
    """A number in [low, high], or above `above`; nan never, an infinite one only where `infinite`."""

    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    infinite: bool = False

    @property
    def allowed(self) -> str:
        limits = []
        if self.above > -math.inf:
            limits.append(f"> {self.above:g}")
        elif self.low > -math.inf:
            limits.append(f">= {self.low:g}")
        if self.high < math.inf:
            limits.append(f"<= {self.high:g}")
        return f"a number {' and '.join(limits)}".strip() + (" (inf too)" if self.infinite else "")

    def accepts(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            return False
        if math.isinf(value) and not self.infinite:
            return False
        return self.above < value and self.low <= value <= self.high


@dataclass(frozen=True)
class Whole:
    """A whole number in [low, high], where None is no bound, or one of `also`."""

    low: int | None = None
    high: int | None = None
    also: tuple[int, ...] = ()

    @property
    def allowed(self) -> str:
        if self.low is not None and self.low == self.high:
            return str(self.low)
        limits = [f">= {self.low}"] if self.low is not None else []
        if self.high is not None:
            limits.append(f"<= {self.high}")
        return f"a whole number {' and '.join(limits)}".strip() + "".join(f" or {also}" for also in self.also)

    def accepts(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        above = self.low is None or self.low <= value
        return value in self.also or (above and (self.high is None or value <= self.high))


@dataclass(frozen=True)
class Flag:
    """true or false."""

    allowed: str = "true or false"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True)
class Choice:
    """One of some names."""

    options: Sequence[str]

    @property
    def allowed(self) -> str:
        return ("one of " if len(self.options) > 1 else "") + ", ".join(self.options)

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.options


@dataclass(frozen=True)
class Text:
    """Text that is not empty, nor, without `blank`, made of spaces alone."""

    what: str = "text that is not empty"
    blank: bool = False

    @property
    def allowed(self) -> str:
        return self.what

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str) and bool(value if self.blank else value.strip())


@dataclass(frozen=True)
class ListOf:
    """A list of values of one kind; `alone`: one value may stand without a list."""

    kind: Kind
    what: str = ""
    alone: bool = False
    empty: bool = False
    length: int | None = None

    @property
    def allowed(self) -> str:
        return self.what or f"a list, each {self.kind.allowed}"

    def accepts(self, value: Any) -> bool:
        if not isinstance(value, list):
            return self.alone and self.kind.accepts(value)
        if self.length is not None and len(value) != self.length:
            return False
        return (self.empty or bool(value)) and all(map(self.kind.accepts, value))


@dataclass(frozen=True)
class Either:
    """A value of one of two kinds."""

    first: Kind
    second: Kind

    @property
    def allowed(self) -> str:
        return f"{self.first.allowed}, or {self.second.allowed}"

    def accepts(self, value: Any) -> bool:
        return self.first.accepts(value) or self.second.accepts(value)


@dataclass(frozen=True)
class Elsewhere:
    """A value that another part checks, because it alone knows what it may be."""

    allowed: str

    def accepts(self, value: Any) -> bool:
        return True


@dataclass(frozen=True)
class Key:
    """One setting.

    name: with dots, as on the command line.
    help: what it is, without a full stop.
    null: what null means; "" where null is refused.
    shown: whether --help lists it.
    """

    name: str
    kind: Kind
    help: str
    null: str = ""
    shown: bool = False

    @property
    def allowed(self) -> str:
        """The allowed values as the end of a sentence."""
        return self.kind.allowed + (f", or null ({self.null})" if self.null else "")

    def accepts(self, value: Any) -> bool:
        """Whether `value`, which is plain, may stand here."""
        return bool(self.null) if value is None else self.kind.accepts(value)
