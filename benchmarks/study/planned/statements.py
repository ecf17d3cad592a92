"""The sentences with numbers on what the planned runs say, from the runs.

As in `benchmarks.study.statements`: each function gives parts of sentences as they have to stand on the page.
`benchmarks.study.claims` looks at the pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from benchmarks.study.claim_values import text_of, when
from benchmarks.study.comparison import Paired
from benchmarks.study.differences import Pair, difference_cell
from benchmarks.study.planned.answers import (
    ALL_MODELS,
    MARGIN,
    by_pair,
    compare,
    compared,
    corrected,
    idea_and_rule,
    of_world,
    verdict,
)
from benchmarks.study.planned.choice import ranked_ideas
from benchmarks.study.planned.plan import OURS, PRIMARY
from benchmarks.study.planned.runs import PlannedRun
from benchmarks.study.runs import StudyError

RULE, PAPERS, CURRENT = (OURS, "rule"), (OURS, "rerule"), (OURS, "current_equal_compute")
Runs = Sequence[PlannedRun]


class Answers:
    """What the runs say, once all are done.

    Raises:
        StudyError: some runs that count are missing.
    """

    def __init__(self, runs: Runs) -> None:
        pairs = by_pair(runs)
        self.whole = compared(pairs)
        self.idea, rate, _ = ranked_ideas(runs)[0]
        confirmed = idea_and_rule(runs, self.idea, rate)
        if not self.whole or len(confirmed) < ALL_MODELS:
            raise StudyError("some runs that count are missing, so that no question is answered")
        self.by_world = {
            (pair, world): compare(of_world(found, world))
            for pair, found in {**pairs, (self.idea, "rule"): confirmed}.items()
            for world in ("many", "tofu")
        }
        self.corrected = corrected(self.whole)
        self.whole[self.idea, "rule"] = compare(confirmed)

    def gap(self, pair: Pair, world: str = "") -> str:
        """The difference over all models, or over those of a world, with its interval."""
        return text_of(difference_cell(self.by_world[pair, world] if world else self.whole[pair]))

    def is_open(self, pair: Pair) -> bool:
        """Whether the interval contains 0."""
        return self.whole[pair].low <= 0 <= self.whole[pair].high

    @property
    def saved(self) -> Paired:
        """The confirmed idea minus RULE."""
        return self.whole[self.idea, "rule"]
