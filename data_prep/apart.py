"""What a command writes stands apart from what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

Input = tuple[str, Path]
"""The option that names an input, and the input."""


def check_apart(out: Path, *inputs: Input, runs: Sequence[Input] = (), written: str = "--out") -> None:
    """Refuse an output that is an input, holds one, or lies in one. Links are followed.

    Args:
        out: what will be written, the value of the option `written`.
        inputs: what is read; what is not there, such as a name on the Hub, is left out by the caller.
        runs: folders of runs, in which the output may lie.

    Raises:
        ValueError: naming both.
    """
    place = out.resolve()
    for option, path in [*inputs, *runs]:
        found = path.resolve()
        if found == place:
            raise ValueError(f"{written} is {out}, which {option} reads: give another {written}")
        if place in found.parents:
            raise ValueError(
                f"{written} is {out}, in which {option} {path} lies: give another {written}, or move that "
                "file away"
            )
    for option, path in inputs:
        if path.resolve() in place.parents:
            raise ValueError(
                f"{written} is {out}, which lies in what {option} reads, {path}: give another {written}"
            )


def there(*inputs: tuple[str, str | Path | None]) -> list[Input]:
    """The inputs that exist on this machine; None and names on the Hub are left out."""
    return [(option, Path(path)) for option, path in inputs if path is not None and Path(path).exists()]
