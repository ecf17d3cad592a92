"""The sentences with numbers on what the runs of the larger world say, from the runs.

As in `benchmarks.study.planned.statements`. `benchmarks.study.claims` looks at the pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from benchmarks.study.claim_values import when
from benchmarks.study.larger.answers import Contrast, Runs, chosen_rate, contrast, counted
from benchmarks.study.larger.plan import ARMS, COUNTED_BASES, PRIMARY, RATES, SECONDARY
from benchmarks.study.runs import StudyError

SIZE = "10m"
"""The size of the plan's answer."""
REPLAY_AND_RULE, UPDATES_AND_RULE = SECONDARY
IN_WORDS = {
    "higher": "is better than",
    "lower": "is worse than",
    "open": "is not shown to be better or worse than",
}
SAME_STEPS = "the same number of optimiser steps without replay"
PARTS = (
    ("retain/recall", "retain recall is ", " for RULE"),
    ("retain_unseen/recall", "unseen recall is ", ""),
    ("forget/recall", "Forget recall is ", ""),
)
"""A measure, and what stands around its two numbers."""


def in_larger(runs: Runs) -> list[str]:
    """What stands before the first section of docs/larger.md.

    Raises:
        StudyError: a run that counts is missing, so that no question is answered.
    """
    return [*questions(runs), *of_runs(runs), *parts(runs)]


def in_pages(runs: Runs) -> list[str]:
    """The sentence of docs/results.md and the README.

    Raises:
        StudyError: as `in_larger`.
    """
    first, second = _whole(runs)[:2]
    return [
        f"the recommended replay {IN_WORDS[first.answer]} {SAME_STEPS} ({first.text})",
        f"{IN_WORDS[second.answer]} RULE ({second.text})",
    ]


def questions(runs: Runs) -> Iterator[str]:
    """The primary contrast, then the other two."""
    first, second, third = _whole(runs)
    yield f"**The recommended replay {IN_WORDS[first.answer]} {SAME_STEPS}.**"
    yield f"The difference in mean score is {first.text}"
    yield f"**The recommended replay {IN_WORDS[second.answer]} RULE.**"
    yield f"The difference is {second.text}"
    yield f"The second update alone {IN_WORDS[third.answer]} RULE: the difference is {third.text}"


def of_runs(runs: Runs) -> Iterator[str]:
    """What the mean scores are, and on how many models RULE has the highest one."""
    own = counted(runs, SIZE)
    scores = {arm: {run.base: run.score for run in own if run.arm == arm} for arm in ARMS}
    means = [f"{mean(of.values()):.3f} for `{arm}`" for arm, of in scores.items()]
    yield f"The mean scores are {means[0]}, {means[1]} and {means[2]}"
    best = sum(scores["rule"][base] == max(of[base] for of in scores.values()) for base in COUNTED_BASES)
    yield f"RULE has the highest one on {best} of {len(COUNTED_BASES)} models"
    yield when(chosen_rate(runs, SIZE) == max(RATES), f"RULE chose {max(RATES):g} times the learning rate")


def parts(runs: Runs) -> Iterator[str]:
    """What the recommended replay and RULE keep, forget and refuse."""
    own = counted(runs, SIZE)
    for name, start, end in PARTS:
        replay, rule = (_mean(own, arm, name) for arm in REPLAY_AND_RULE)
        yield f"{start}{replay:.3f} instead of {rule:.3f}{end}"
    replay, rule = (_mean(own, arm, "retain/refused") for arm in REPLAY_AND_RULE)
    no_more = f"does not refuse more of the retain questions ({replay:.3f} instead of {rule:.3f})"
    yield when(replay <= rule, no_more)


def _mean(runs: Runs, arm: str, name: str) -> float:
    return mean(run.final[name] for run in runs if run.arm == arm)


def _whole(runs: Runs) -> list[Contrast]:
    found = [contrast(runs, SIZE, pair) for pair in (PRIMARY, REPLAY_AND_RULE, UPDATES_AND_RULE)]
    if not all(each.is_whole for each in found):
        raise StudyError(f"some runs of {SIZE} that count are missing, so that no question is answered")
    return found
