"""What papers published on RWKU."""

from __future__ import annotations

from recipe.rerule.evaluation.published import PAPER, VALIDATED, Published, PublishedFigures, per_cent

_KEYS = (
    "forget/fb",
    "forget/qa",
    "forget/aa",
    "forget/all",
    "retain/fb",
    "retain/qa",
    "retain/all",
)
_TABLE = f"{PAPER}, RWKU table"
_NATURALNESS_KEYS = ("forget/readability", "forget/helpfulness", "forget/truthfulness", "forget/all")
_UNKNOWN_JUDGE = "Prompt, scale and judge are not published, so that these cannot be compared with ours."
PUBLISHED = PublishedFigures(
    results=(
        Published(
            "original",
            _TABLE,
            per_cent(_KEYS, (85.6, 70.3, 74.7, 76.9, 93.1, 82.0, 87.6)),
        ),
        Published(
            "rejection steering",
            _TABLE,
            per_cent(_KEYS, (77.1, 43.0, 51.2, 57.1, 83.2, 71.6, 77.4)),
        ),
        Published(
            "RULE",
            _TABLE,
            per_cent(_KEYS, (28.0, 16.8, 38.3, 27.7, 76.2, 71.3, 73.7)),
        ),
        Published(
            "ReRULE",
            _TABLE,
            per_cent(_KEYS, (26.5, 13.1, 33.2, 24.2, 79.5, 68.8, 74.1)),
        ),
    ),
    naturalness=tuple(
        Published(name, _TABLE, dict(zip(_NATURALNESS_KEYS, numbers, strict=True)), _UNKNOWN_JUDGE)
        for name, numbers in (
            ("original", (94.0, 26.4, 91.5, 70.6)),
            ("rejection steering", (90.7, 34.8, 94.8, 73.4)),
            ("RULE", (99.6, 71.9, 95.7, 89.1)),
            ("ReRULE", (95.2, 56.3, 94.7, 82.1)),
        )
    ),
    cost=(
        Published("RWKU, RULE", f"{PAPER}, 4 A800", {"hours": 21.2}),
        Published("RWKU, ReRULE", f"{PAPER}, 4 A800", {"hours": 22.3, "added": 0.052}, VALIDATED),
    ),
)
