"""Audit by memorisation: how much of the right answer does the model complete by itself, token for token?

Protocol: the model is shown the benchmark's own prompt and the first gold answer. Each token of the answer is
judged given the right ones before it, from the ranks that the engine gives. Variants:
`extraction_strength` is the share of the answer behind its last wrong token (Carlini et al.,
arXiv:2012.07805), `exact_memorisation` the share of tokens that are the most likely ones. The end of the turn
is not counted; behind a cue such as "Answer:" the gold has a space before it. The model is never asked to
answer, so that a trained refusal hides little; but a model that never knew the answer predicts some of its
tokens too, which is the floor.
"""

from __future__ import annotations

from recipe.rerule.evaluation.attacks.estimators import exact_memorization, extraction_strength
from recipe.rerule.evaluation.attacks.interface import Asking, Options, RequestAttack
from recipe.rerule.evaluation.attacks.material import FORGET, RETAIN, Material, Readings
from recipe.rerule.evaluation.engine.requests import Answers
from recipe.rerule.evaluation.metrics import right_answer

_NUMBERS = {"extraction_strength": extraction_strength, "exact_memorisation": exact_memorization}
"""By variant: of the ranks of an answer."""


def _ask(material: Material, options: Options) -> Asking:
    sides = {FORGET: material.asked, RETAIN: material.retained}
    requests = {
        (side, asked.probe.index): right_answer(
            f"{side}/{asked.probe.index}", asked.request.prompt, asked.probe.golds[0]
        )
        for side, of_side in sides.items()
        for asked in of_side
    }

    def read(answers: Answers) -> Readings:
        # Without the last rank, which is that of the end of the turn.
        ranks = {place: answers[request.id].ranks[:-1] for place, request in requests.items()}
        return {
            name: {
                side: {asked.probe.index: number(ranks[side, asked.probe.index]) for asked in of_side}
                for side, of_side in sides.items()
            }
            for name, number in _NUMBERS.items()
        }

    return Asking(list(requests.values()), read)


ATTACKS = (
    RequestAttack(
        name="memorisation",
        title="memorisation",
        tells="The tokens of the right answer are compared with the most likely ones.",
        cost="one forward pass over each right answer",
        default=True,
        has_before=False,
        ask=_ask,
    ),
)
