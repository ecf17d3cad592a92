"""What papers published on TOFU."""

from __future__ import annotations

from recipe.rerule.evaluation.published import PAPER, VALIDATED, Published, PublishedFigures

_KEYS = ("forget_quality", "model_utility", "forget_Q_A_ROUGE")
_TABLE = f"{PAPER}, TOFU forget01 table"
_REFUSAL_SCORE = (
    '0.1322 is what saying only "I\'m not certain about <author>." scores on all 40 forget questions.'
)
_UNEQUAL_SETS = (
    "The p-value compares 300 truth ratios with 40; like for like (40 with 40) open-unlearning reports "
    "1.27e-03."
)
PUBLISHED = PublishedFigures(
    results=(
        Published("original", _TABLE, {"forget_quality": 4.4883e-06}, _UNEQUAL_SETS),
        Published("retained", _TABLE, {"model_utility": 0.6267}),
        Published("RULE", _TABLE, dict(zip(_KEYS, (0.1650, 0.6151, 0.1322), strict=True)), _REFUSAL_SCORE),
        Published("ReRULE", _TABLE, dict(zip(_KEYS, (0.1650, 0.6076, 0.1322), strict=True)), _REFUSAL_SCORE),
    ),
    hard_share=(
        Published("TOFU forget01", PAPER, {"tau": 0.4, "share": 0.475}),
        Published("TOFU forget01", PAPER, {"tau": 0.6, "share": 0.543}),
    ),
    cost=(
        Published("TOFU forget01, RULE", f"{PAPER}, 4 A800", {"hours": 1.8}),
        Published("TOFU forget01, ReRULE", f"{PAPER}, 4 A800", {"hours": 2.0, "added": 0.111}, VALIDATED),
    ),
)
