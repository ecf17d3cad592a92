"""Audit by memorisation: how much of the right answer does the model complete by itself, token for token?

Protocol: the model is shown the benchmark's own prompt and the first gold answer. Each token of the answer is
judged given the right ones before it, from the ranks that the engine gives. Settings:
`extraction_strength` is the share of the answer behind its last wrong token (Carlini et al.,
arXiv:2012.07805), `exact_memorisation` the share of tokens that are the most likely ones. The end of the turn
is not counted; behind a cue such as "Answer:" the gold has a space before it. The model is never asked to
answer, so that a trained refusal hides little; but a model that never knew the answer predicts some of its
tokens too, which is the floor.
"""

from __future__ import annotations

from recipe.rerule.evaluation.attacks.attack import Asking, Attack, Material, Options, Row
from recipe.rerule.evaluation.engine.requests import Answers
from recipe.rerule.evaluation.metrics import exact_memorization, extraction_strength, right_answer

_NUMBERS = {"extraction_strength": extraction_strength, "exact_memorisation": exact_memorization}
"""By setting: of the ranks of an answer."""


def _ask(material: Material, options: Options) -> Asking:
    asked = [(side, one) for side, of_side in material.sides.items() for one in of_side]
    requests = [
        right_answer(f"{side}/{one.probe.index}", one.request.prompt, one.probe.golds[0])
        for side, one in asked
    ]

    def read(answers: Answers) -> list[Row]:
        # Without the last rank, which is that of the end of the turn.
        return [
            material.row(
                side, one.probe, request.prompt, number(answers[request.id].ranks[:-1]), setting=name
            )
            for name, number in _NUMBERS.items()
            for (side, one), request in zip(asked, requests, strict=True)
        ]

    return Asking(requests, read)


ATTACKS = (
    Attack(
        name="memorisation",
        title="memorisation",
        tells="The tokens of the right answer are compared with the most likely ones.",
        default=True,
        has_before=False,
        ask=_ask,
    ),
)
