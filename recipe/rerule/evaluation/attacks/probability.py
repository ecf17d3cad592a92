"""Audit by probability: how likely the right answer is, also once the model has begun to answer.

Protocol: the model is shown the benchmark's own prompt and the first gold answer, and the score is the
geometric mean of the probabilities of the answer's tokens, without the end of its turn. A model that refuses
makes an answer unlikely because it would refuse, not because it has forgotten. So the variants `prefilled`
and `prefilled_extraction_strength` have an affirmative beginning (`prefill`) before the answer; the second
one is the share of the answer that the model then completes by itself (arXiv:2012.07805). The answer is
tried with and without a space behind the beginning, and the higher score counts, because models learn
either.

Traps: an answer that is worded in another way than the model would word it is unlikely for every model;
compare with the never-knew model.
"""

from __future__ import annotations

import math

from recipe.rerule.evaluation.attacks.estimators import extraction_strength
from recipe.rerule.evaluation.attacks.interface import Asking, Options, RequestAttack
from recipe.rerule.evaluation.attacks.material import FORGET, RETAIN, Asked, Material, Readings
from recipe.rerule.evaluation.attacks.prefill import BEGINNINGS
from recipe.rerule.evaluation.attacks.questions import prefilled
from recipe.rerule.evaluation.engine.requests import Answer, Answers, Likelihood

_PLAIN, _PREFILLED, _SPACED = "plain", "prefilled", "prefilled_spaced"


def per_token(answer: Answer) -> float:
    """The geometric mean of the probabilities of an answer's tokens, without the end of its turn."""
    return math.exp(math.fsum(answer.log_probs[:-1]) / (len(answer.log_probs) - 1))


def _strength(answer: Answer) -> float:
    return extraction_strength(answer.ranks[:-1])


_VARIANTS = {
    "": ((_PLAIN,), per_token),
    "prefilled": ((_PREFILLED, _SPACED), per_token),
    "prefilled_extraction_strength": ((_PREFILLED, _SPACED), _strength),
}
"""The ways in which the answer is asked for, of which the highest score counts."""


def _ask(material: Material, options: Options) -> Asking:
    sides = {FORGET: material.asked, RETAIN: material.retained}
    requests = {
        (way, side, asked.probe.index): _request(way, side, asked)
        for way in (_PLAIN, _PREFILLED, _SPACED)
        for side, of_side in sides.items()
        for asked in of_side
    }

    def read(answers: Answers) -> Readings:
        return {
            variant: {
                side: {
                    asked.probe.index: max(
                        score(answers[requests[way, side, asked.probe.index].id]) for way in ways
                    )
                    for asked in of_side
                }
                for side, of_side in sides.items()
            }
            for variant, (ways, score) in _VARIANTS.items()
        }

    return Asking(list(requests.values()), read)


def _request(way: str, side: str, asked: Asked) -> Likelihood:
    request = asked.request if way == _PLAIN else prefilled(asked, BEGINNINGS["affirmative"])
    answer = asked.probe.golds[0]
    return Likelihood(
        f"{way}/{side}/{asked.probe.index}",
        request.prompt,
        f" {answer}" if way == _SPACED else answer,
    )


ATTACKS = (
    RequestAttack(
        name="probability",
        title="p(answer)",
        tells="The probability of the right answer is measured, also behind an affirmative beginning.",
        cost="three forward passes over each right answer",
        default=True,
        has_before=False,
        ask=_ask,
    ),
)
