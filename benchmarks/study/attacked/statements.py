"""The sentences with numbers of docs/survival.md on what replay changes, from the attacks.

As in `benchmarks.study.planned.statements`. `benchmarks.study.claims` looks at the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from benchmarks.study.attacked.plan import ARMS, BASES, PRIMARY, PRIMARY_MEASURE
from benchmarks.study.attacked.results import Attacked
from benchmarks.study.attacked.tables import answer, by_base, compare
from benchmarks.study.claim_values import text_of, when
from benchmarks.study.differences import Pair, difference_cell
from benchmarks.study.runs import StudyError
from recipe.rerule.evaluation.attacks.registry import BEFORE
from recipe.rerule.reporting.attacks.results import CONTROL, ORIGINAL

SAMPLES = "samples/max_16"
PAPERS, PAPERS_AND_RULE = ("rerule", "equal_updates"), ("rerule", "rule")
OWN_AND_RULE = (PRIMARY[0], "rule")


def in_survival(found: Attacked) -> list[str]:
    """The first sentences of the section.

    Raises:
        StudyError: a base was not attacked yet.
    """
    if len(found.bases) < len(BASES):
        raise StudyError(f"{len(found.bases)} of {len(BASES)} bases were attacked; no question is answered")
    return [*relearning(found), *sampling(found)]


def relearning(found: Attacked) -> Iterator[str]:
    """The primary contrast."""
    whole = compare(found, PRIMARY, PRIMARY_MEASURE)
    yield when(
        answer(whole) == "alike", "**After relearning, the recommended replay and equal updates are alike.**"
    )
    yield f"The difference is {_gap(found, PRIMARY, PRIMARY_MEASURE)}, with p = {whole.p_value:.2f}"
    values = [_mean(found, arm, PRIMARY_MEASURE) for arm in ARMS]
    knows, never = (_mean(found, model, PRIMARY_MEASURE) for model in (ORIGINAL, CONTROL))
    yield f"recall comes back to {min(values):.2f} to {max(values):.2f} in all four arms"
    yield f"the model that knows everything has {knows:.2f}"
    yield f"the one that never knew the facts {never:.2f}"


def sampling(found: Attacked) -> Iterator[str]:
    """What 16 samples give."""
    more = all(answer(compare(found, pair, SAMPLES)) == "more" for pair in (PRIMARY, PAPERS, PAPERS_AND_RULE))
    yield when(more, "**Sixteen samples get more out of models with replay than out of equal updates.**")
    yield f"recommended replay leaks {_gap(found, PRIMARY, SAMPLES)} more"
    yield f"and the paper's replay {_gap(found, PAPERS, SAMPLES)}"
    yield f"The paper's replay also leaks more than RULE ({_gap(found, PAPERS_AND_RULE, SAMPLES)})"
    open_one = answer(compare(found, OWN_AND_RULE, SAMPLES)) == "open"
    yield when(open_one, f"recommended replay minus RULE is open ({_gap(found, OWN_AND_RULE, SAMPLES)})")
    order = [sorted(ARMS, key=lambda arm: _mean(found, arm, name)) for name in (BEFORE, SAMPLES)]
    yield when(order[0] == order[1], "The four arms have the same order in forget recall without an attack")


def _mean(found: Attacked, model: str, measure: str) -> float:
    return mean(by_base(found, model, measure).values())


def _gap(found: Attacked, pair: Pair, measure: str) -> str:
    return text_of(difference_cell(compare(found, pair, measure)))
