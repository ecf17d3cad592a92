"""Audit by probability: how likely the right answer is, also once the model has begun to answer.

Protocol: the model is shown the benchmark's own prompt and the first gold answer, and the score is the
geometric mean of the probabilities of the answer's tokens, without the end of its turn. A model that refuses
makes an answer unlikely because it would refuse, not because it has forgotten. So the settings `prefilled`
and `prefilled_extraction_strength` have an affirmative beginning (`prefill`) before the answer; the second
one is the share of the answer that the model then completes by itself (arXiv:2012.07805). The answer is
tried with and without a space behind the beginning, and the higher score counts, because models learn
either.

Traps: an answer that is worded in another way than the model would word it is unlikely for every model;
compare with the never-knew model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from recipe.rerule.evaluation.attacks.asking import prefilled
from recipe.rerule.evaluation.attacks.attack import Asked, Asking, Attack, Material, Options, Row
from recipe.rerule.evaluation.attacks.prefill import BEGINNINGS
from recipe.rerule.evaluation.engine.requests import Answer, Answers, Likelihood
from recipe.rerule.evaluation.metrics import extraction_strength, right_answer

PLAIN, _PREFILLED, _SPACED = "plain", "prefilled", "prefilled_spaced"


def per_token(answer: Answer) -> float:
    """The geometric mean of the probabilities of an answer's tokens, without the end of its turn."""
    return math.exp(math.fsum(answer.log_probs[:-1]) / (len(answer.log_probs) - 1))


def strength(answer: Answer) -> float:
    """The share of an answer behind its last wrong token; the end of the turn is not counted."""
    return extraction_strength(answer.ranks[:-1])


Settings = Mapping[str, tuple[Sequence[str], Callable[[Answer], float]]]
"""By name: the ways in which the answer is asked for, of which the highest score counts."""
_SETTINGS: Settings = {
    "": ((PLAIN,), per_token),
    "prefilled": ((_PREFILLED, _SPACED), per_token),
    "prefilled_extraction_strength": ((_PREFILLED, _SPACED), strength),
}


def ask_right_answers(settings: Settings, material: Material, options: Options) -> Asking:
    """The right answer of every probe, shown to the model in the ways of the settings."""
    asked = [(side, one, _by_way(side, one)) for side, of_side in material.sides.items() for one in of_side]
    wanted = dict.fromkeys(way for ways, _ in settings.values() for way in ways)

    def read(answers: Answers) -> list[Row]:
        found = []
        for setting, (ways, score) in settings.items():
            for side, one, requests in asked:
                highest = max(score(answers[requests[way].id]) for way in ways)
                prompt = requests[ways[0]].prompt
                found.append(material.row(side, one.probe, prompt, highest, setting=setting))
        return found

    return Asking([requests[way] for *_, requests in asked for way in wanted], read)


def _by_way(side: str, asked: Asked) -> dict[str, Likelihood]:
    """The requests for the right answer of a probe, by the way in which it is asked for."""
    begun, gold = prefilled(asked, BEGINNINGS["affirmative"]).request.prompt, asked.probe.golds[0]
    name = f"{side}/{asked.probe.index}"
    return {
        PLAIN: right_answer(f"{PLAIN}/{name}", asked.request.prompt, gold),
        _PREFILLED: Likelihood(f"{_PREFILLED}/{name}", begun, gold),
        _SPACED: Likelihood(f"{_SPACED}/{name}", begun, f" {gold}"),
    }


ATTACKS = (
    Attack(
        name="probability",
        title="p(answer)",
        tells="The probability of the right answer is measured, also behind an affirmative beginning.",
        default=True,
        has_before=False,
        ask=partial(ask_right_answers, _SETTINGS),
    ),
)
