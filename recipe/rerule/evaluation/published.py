"""Figures that papers published, to be set next to measured ones.

Every one is a single run without seed or error bar, on other hardware, with its own prompts and decoding.
What is known to be wrong with a figure stands with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PAPER = "ReRULE paper"
CAUTION = (
    "Published rows are single runs of others, without seeds or error bars and with their own prompts and "
    "decoding: for orientation only."
)
VALIDATED = "The reference script validates at every step, which makes the share of replay look smaller."
"""Note of the costs that the paper gives for replay."""


@dataclass(frozen=True)
class Published:
    """A published row.

    Attributes:
        name: of the model or method, as it stands in the table.
        source: paper and table.
        values: {metric key of results.json, or a key of the table: fraction of 1 where the metric is one}.
        note: what is wrong with it or to be known, "" for nothing.
    """

    name: str
    source: str
    values: dict[str, float]
    note: str = ""


@dataclass(frozen=True)
class PublishedFigures:
    """The published rows of one benchmark, by the table of the report that shows them.

    Attributes:
        results: metrics of the benchmark.
        naturalness: scores of a judge.
        storage: what replay stores, by metrics.
        tau: the threshold of replay, by metrics.
        hard_share: {"tau", "share"}, the share of hard groups.
        cost: {"hours", "added"}, wall time and what replay adds to it.
    """

    results: tuple[Published, ...] = ()
    naturalness: tuple[Published, ...] = ()
    storage: tuple[Published, ...] = ()
    tau: tuple[Published, ...] = ()
    hard_share: tuple[Published, ...] = ()
    cost: tuple[Published, ...] = ()


def per_cent(keys: Sequence[str], numbers: Sequence[float]) -> dict[str, float]:
    """Numbers published in per cent as fractions of 1, by metric."""
    return {key: number / 100 for key, number in zip(keys, numbers, strict=True)}
