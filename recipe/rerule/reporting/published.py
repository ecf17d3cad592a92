"""Figures that papers published, to be set beside ours.

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


def _per_cent(keys: Sequence[str], numbers: Sequence[float]) -> dict[str, float]:
    return {key: number / 100 for key, number in zip(keys, numbers, strict=True)}


_RWKU_KEYS = (
    "forget/fb",
    "forget/qa",
    "forget/aa",
    "forget/all",
    "retain/fb",
    "retain/qa",
    "retain/all",
)
_MUSE_KEYS = ("verbmem_f", "knowmem_f", "knowmem_r")
_TOFU_KEYS = ("forget_quality", "model_utility", "forget_Q_A_ROUGE")
_RWKU_TABLE = f"{PAPER}, RWKU table"
_MUSE_TABLE = f"{PAPER}, MUSE-Books table"
_TOFU_TABLE = f"{PAPER}, TOFU forget01 table"
_REFUSAL_SCORE = (
    '0.1322 is what saying only "I\'m not certain about <author>." scores on all 40 forget questions.'
)
_UNEQUAL_SETS = (
    "The p-value compares 300 truth ratios with 40; like for like (40 with 40) open-unlearning reports "
    "1.27e-03."
)

RWKU = (
    Published(
        "original",
        _RWKU_TABLE,
        _per_cent(_RWKU_KEYS, (85.6, 70.3, 74.7, 76.9, 93.1, 82.0, 87.6)),
    ),
    Published(
        "rejection steering",
        _RWKU_TABLE,
        _per_cent(_RWKU_KEYS, (77.1, 43.0, 51.2, 57.1, 83.2, 71.6, 77.4)),
    ),
    Published(
        "RULE",
        _RWKU_TABLE,
        _per_cent(_RWKU_KEYS, (28.0, 16.8, 38.3, 27.7, 76.2, 71.3, 73.7)),
    ),
    Published(
        "ReRULE",
        _RWKU_TABLE,
        _per_cent(_RWKU_KEYS, (26.5, 13.1, 33.2, 24.2, 79.5, 68.8, 74.1)),
    ),
)
MUSE_BOOKS = (
    Published(
        "original",
        _MUSE_TABLE,
        _per_cent(_MUSE_KEYS, (58.4, 63.9, 55.2)),
        "This row belongs to MUSE-News; the original model of MUSE-Books scores about 99.7, 47.1 and 69.1.",
    ),
    Published(
        "RULE",
        _MUSE_TABLE,
        _per_cent(_MUSE_KEYS, (0.0, 1.4, 46.3)),
        "KnowMem 1.4 lies within what constant refusals score (0.1 to 3.7); VerbMem stops at the first "
        "newline.",
    ),
    Published("ReRULE", _MUSE_TABLE, _per_cent(_MUSE_KEYS, (0.0, 1.4, 56.2)), "As for RULE."),
)
TOFU = (
    Published("original", _TOFU_TABLE, {"forget_quality": 4.4883e-06}, _UNEQUAL_SETS),
    Published("retained", _TOFU_TABLE, {"model_utility": 0.6267}),
    Published(
        "RULE", _TOFU_TABLE, dict(zip(_TOFU_KEYS, (0.1650, 0.6151, 0.1322), strict=True)), _REFUSAL_SCORE
    ),
    Published(
        "ReRULE", _TOFU_TABLE, dict(zip(_TOFU_KEYS, (0.1650, 0.6076, 0.1322), strict=True)), _REFUSAL_SCORE
    ),
)
_NATURALNESS_KEYS = ("forget/readability", "forget/helpfulness", "forget/truthfulness", "forget/all")
_UNKNOWN_JUDGE = "Prompt, scale and judge are not published, so that these cannot be compared with ours."
NATURALNESS_RWKU = tuple(
    Published(name, _RWKU_TABLE, dict(zip(_NATURALNESS_KEYS, numbers, strict=True)), _UNKNOWN_JUDGE)
    for name, numbers in (
        ("original", (94.0, 26.4, 91.5, 70.6)),
        ("rejection steering", (90.7, 34.8, 94.8, 73.4)),
        ("RULE", (99.6, 71.9, 95.7, 89.1)),
        ("ReRULE", (95.2, 56.3, 94.7, 82.1)),
    )
)
RESULTS: dict[str, tuple[Published, ...]] = {
    "rwku": RWKU,
    "muse_books": MUSE_BOOKS,
    "tofu": TOFU,
    "naturalness_rwku": NATURALNESS_RWKU,
}
"""By benchmark; the embedded world has none."""

_MUSE_STORAGE = f"{PAPER}, storage table"
STORAGE: dict[str, tuple[Published, ...]] = {
    "muse_books": (
        Published("RULE, no replay", _MUSE_STORAGE, _per_cent(_MUSE_KEYS, (0.0, 1.4, 46.3))),
        Published("ReRULE, hard storage", _MUSE_STORAGE, _per_cent(_MUSE_KEYS, (0.0, 1.4, 56.2))),
        Published("ReRULE, random storage", _MUSE_STORAGE, _per_cent(_MUSE_KEYS, (0.0, 1.5, 46.3))),
    )
}
_MUSE_TAU = f"{PAPER}, tau table"
TAU: dict[str, tuple[Published, ...]] = {
    "muse_books": (
        Published("ReRULE, tau 0.4", _MUSE_TAU, _per_cent(_MUSE_KEYS, (0.0, 1.4, 56.2))),
        Published("ReRULE, tau 0.6", _MUSE_TAU, _per_cent(_MUSE_KEYS, (6.6, 1.3, 52.3))),
        Published("ReRULE, tau 1.0", _MUSE_TAU, _per_cent(_MUSE_KEYS, (4.3, 1.4, 53.7))),
    )
}

_HARD = PAPER
HARD_SHARE = (
    Published("MUSE-Books", _HARD, {"tau": 0.4, "share": 0.675}),
    Published("TOFU forget01", _HARD, {"tau": 0.4, "share": 0.475}),
    Published("TOFU forget01", _HARD, {"tau": 0.6, "share": 0.543}),
)

_COST = f"{PAPER}, 4 A800"
_VALIDATED = "The reference script validates at every step, which makes the share of replay look smaller."
COST = (
    Published("RWKU, RULE", _COST, {"hours": 21.2}),
    Published("RWKU, ReRULE", _COST, {"hours": 22.3, "added": 0.052}, _VALIDATED),
    Published("MUSE-Books, RULE", _COST, {"hours": 6.8}),
    Published("MUSE-Books, ReRULE", _COST, {"hours": 7.1, "added": 0.044}, _VALIDATED),
    Published("TOFU forget01, RULE", _COST, {"hours": 1.8}),
    Published("TOFU forget01, ReRULE", _COST, {"hours": 2.0, "added": 0.111}, _VALIDATED),
)
