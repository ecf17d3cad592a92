"""What papers published on MUSE-Books."""

from __future__ import annotations

from recipe.rerule.evaluation.benchmarks.muse.published import KEYS
from recipe.rerule.evaluation.published import PAPER, VALIDATED, Published, PublishedFigures, per_cent

_TABLE = f"{PAPER}, MUSE-Books table"
_STORAGE = f"{PAPER}, storage table"
_TAU = f"{PAPER}, tau table"
PUBLISHED = PublishedFigures(
    results=(
        Published(
            "original",
            _TABLE,
            per_cent(KEYS, (58.4, 63.9, 55.2)),
            "This row belongs to MUSE-News; the original model of MUSE-Books scores about 99.7, 47.1 and "
            "69.1.",
        ),
        Published(
            "RULE",
            _TABLE,
            per_cent(KEYS, (0.0, 1.4, 46.3)),
            "KnowMem 1.4 lies within what constant refusals score (0.1 to 3.7); VerbMem stops at the first "
            "newline.",
        ),
        Published("ReRULE", _TABLE, per_cent(KEYS, (0.0, 1.4, 56.2)), "As for RULE."),
    ),
    storage=(
        Published("RULE, no replay", _STORAGE, per_cent(KEYS, (0.0, 1.4, 46.3))),
        Published("ReRULE, hard storage", _STORAGE, per_cent(KEYS, (0.0, 1.4, 56.2))),
        Published("ReRULE, random storage", _STORAGE, per_cent(KEYS, (0.0, 1.5, 46.3))),
    ),
    tau=(
        Published("ReRULE, tau 0.4", _TAU, per_cent(KEYS, (0.0, 1.4, 56.2))),
        Published("ReRULE, tau 0.6", _TAU, per_cent(KEYS, (6.6, 1.3, 52.3))),
        Published("ReRULE, tau 1.0", _TAU, per_cent(KEYS, (4.3, 1.4, 53.7))),
    ),
    hard_share=(Published("MUSE-Books", PAPER, {"tau": 0.4, "share": 0.675}),),
    cost=(
        Published("MUSE-Books, RULE", f"{PAPER}, 4 A800", {"hours": 6.8}),
        Published("MUSE-Books, ReRULE", f"{PAPER}, 4 A800", {"hours": 7.1, "added": 0.044}, VALIDATED),
    ),
)
