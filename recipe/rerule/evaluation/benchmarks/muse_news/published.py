"""What papers published on MUSE-News."""

from __future__ import annotations

from recipe.rerule.evaluation.benchmarks.muse.published import KEYS
from recipe.rerule.evaluation.published import PAPER, Published, PublishedFigures, per_cent

PUBLISHED = PublishedFigures(
    results=(
        Published(
            "original",
            f"{PAPER}, MUSE-Books table",
            per_cent(KEYS, (58.4, 63.9, 55.2)),
            "The paper prints this row of MUSE-News in its table of MUSE-Books.",
        ),
    )
)
