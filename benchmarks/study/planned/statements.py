"""The sentences with numbers on what the planned runs say, from the runs.

As in `benchmarks.study.statements`: each function gives parts of sentences as they have to stand on the page.
`benchmarks.study.claims` looks at the pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.study.claim_values import text_of, when
from benchmarks.study.comparison import Paired
from benchmarks.study.differences import Pair, difference_cell
from benchmarks.study.planned.answers import (
    Model,
    by_pair,
    compare,
    compared,
    corrected,
    idea_and_rule,
    of_world,
    verdict,
)
from benchmarks.study.planned.choice import ranked_ideas
from benchmarks.study.planned.ends import COSTS, by_start, with_rule
from benchmarks.study.planned.plan import COUNTED, OURS, PRIMARY, SHARE, WORLDS
from benchmarks.study.planned.runs import PlannedRun
from benchmarks.study.planned.shares import mean_share
from benchmarks.study.runs import StudyError

Runs = Sequence[PlannedRun]
EQUAL, RULE, PAPERS, CURRENT = PRIMARY, (OURS, "rule"), (OURS, "rerule"), (OURS, "current_equal_compute")
PAPERS_AND_RULE = ("rerule", "rule")
STUCK = ("many", 217)
"""The model on which some arms do not learn to answer; it was found after the runs."""
_MISSING = "some runs that count are missing, so that no question is answered"
REPLAYS = ("rerule", OURS)
OTHERS = tuple(arm for arm in COUNTED if arm not in REPLAYS)


class Answers:
    """What the runs say, once all are done.

    Attributes:
        runs: of the plan.
        idea: the one that is confirmed; its pair with RULE is also among `values`.
        values: of both arms of each pair, by model.
        whole: each pair over all models.
        holm: p-values of the secondary pairs.

    Raises:
        StudyError: some runs that count are missing.
    """

    def __init__(self, runs: Runs) -> None:
        self.runs, self.values, ranked = runs, by_pair(runs), ranked_ideas(runs)
        self.whole = compared(self.values)
        if not self.whole or not ranked:
            raise StudyError(_MISSING)
        self.holm = corrected(self.whole)
        self.idea, rate, _ = ranked[0]
        self.values[self.saving] = idea_and_rule(runs, self.idea, rate)
        if not (saved := compared({self.saving: self.values[self.saving]})):
            raise StudyError(_MISSING)
        self.whole |= saved

    @property
    def saving(self) -> Pair:
        """The confirmed idea and RULE."""
        return self.idea, "rule"

    def gap(self, pair: Pair, world: str = "") -> str:
        """The difference over all models, or over those of a world, with its interval."""
        return _gap(compare(of_world(self.values[pair], world)) if world else self.whole[pair])

    def gap_without(self, pair: Pair, model: Model) -> str:
        """The difference over all models but one."""
        return _gap(compare({each: both for each, both in self.values[pair].items() if each != model}))

    def is_open(self, pair: Pair) -> bool:
        """Whether the interval contains 0."""
        return self.whole[pair].low <= 0 <= self.whole[pair].high

    def scores(self, model: Model, arm: str) -> list[float]:
        """Of an arm's runs on a model."""
        world, own = model[0], by_start(self.runs, model[0], arm)
        return [run.score for (base, _), run in own.items() if (world, base) == model]

    def cost(self, world: str, arm: str, name: str) -> float:
        """Mean share of what RULE's runs cost."""
        own, rule = (by_start(self.runs, world, each) for each in (arm, "rule"))
        return mean_share(with_rule(own, rule), COSTS[name]) or 0.0


def _gap(found: Paired) -> str:
    return text_of(difference_cell(found))


def first_question(a: Answers) -> Iterator[str]:
    """The primary contrast, and the others of question 1."""
    yield when(a.is_open(EQUAL), "**Replay is not shown to be better than RULE at equal compute.**")
    yield f"is {a.gap(EQUAL)} in mean score, with p = {a.whole[EQUAL].p_value:.2f}"
    yield when(a.is_open(RULE), "**Replay is not shown to be better than RULE itself**")
    many, tofu = (a.cost(world, OURS, "compute") for world in WORLDS)
    yield f"recommended replay takes {many:.2f} times RULE's compute in `many` and {tofu:.2f} times in `tofu`"
    yield f"The difference to RULE is {a.gap(RULE)}. In `tofu` alone it is {a.gap(RULE, 'tofu')}"
    yield when(not a.is_open(PAPERS), "**The recommended replay is better than the paper's replay.**")
    yield f"The difference is {a.gap(PAPERS)}, with p = {a.holm[PAPERS]:.3f} after Holm's correction"
    yield when(
        a.is_open(CURRENT), "is not shown to be better than one more update on the current step's groups"
    )
    yield f"At equal compute, the difference is {a.gap(CURRENT)}"


def second_question(a: Answers) -> Iterator[str]:
    """What the best idea saves."""
    many, tofu = (a.cost(world, a.idea, "compute") for world in WORLDS)
    yield when(verdict(a.whole[a.saving]) == "does not save", "**Replay does not save generation.**")
    yield f"best idea of the tuning models (`{a.idea}`) minus RULE at its end is {a.gap(a.saving)}"
    yield f"It takes {many:.2f} of RULE's compute in `many` and {tofu:.2f} in `tofu`"


def one_model(a: Answers) -> Iterator[str]:
    """The model on which some arms do not take off."""
    others = [score for arm in OTHERS for score in a.scores(STUCK, arm)[1:]]
    paper, own = (a.scores(STUCK, arm)[1] for arm in REPLAYS)
    yield f"end between {min(others):.2f} and {max(others):.2f}"
    yield f"the paper's replay ends at {paper:.2f} and the recommended replay at {own:.2f}"
    for name, pair in (("RULE at equal compute", EQUAL), ("RULE", RULE)):
        yield f"{a.gap_without(pair, STUCK)} over {name}"
    yield f"the paper's replay minus RULE is {a.gap_without(PAPERS_AND_RULE, STUCK)}"


def not_better(a: Answers) -> Iterator[str]:
    """Recommended replay against RULE, in one sentence."""
    yield when(a.is_open(EQUAL) and a.is_open(RULE), "replay is not shown to be better than RULE")
    yield f"minus RULE is {a.gap(RULE)} in mean score, and minus RULE at equal compute {a.gap(EQUAL)}"


def in_results(a: Answers) -> Iterator[str]:
    """The first sentences of docs/results.md."""
    yield from not_better(a)
    yield when(not a.is_open(PAPERS), f"is better than the paper's: the difference is {a.gap(PAPERS)}")
    yield f"at equal compute, the difference is {a.gap(CURRENT)}"
    yield when(verdict(a.whole[a.saving]) == "does not save", "Replay does not save generation")
    yield f"with {SHARE:g} of the tokens that RULE generates"
    yield f"minus RULE at its end is {a.gap(a.saving)}"


def in_readme(a: Answers) -> Iterator[str]:
    """The README's paragraph."""
    yield from not_better(a)
    yield when(not a.is_open(PAPERS), f"It is better than the paper's replay ({a.gap(PAPERS)})")
    yield when(verdict(a.whole[a.saving]) == "does not save", "replay does not save generation")


def in_savings(a: Answers) -> list[str]:
    """What stands before the first section of docs/savings.md."""
    return [text for part in (first_question, second_question, one_model) for text in part(a)]
