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

from functools import partial

from recipe.rerule.evaluation.attacks.attack import Attack
from recipe.rerule.evaluation.attacks.probability import PLAIN, Settings, ask_right_answers, strength
from recipe.rerule.evaluation.engine.requests import Answer
from recipe.rerule.evaluation.metrics import exact_memorization


def _exact(answer: Answer) -> float:
    return exact_memorization(answer.ranks[:-1])


_SETTINGS: Settings = {"extraction_strength": ((PLAIN,), strength), "exact_memorisation": ((PLAIN,), _exact)}


ATTACKS = (
    Attack(
        name="memorisation",
        title="memorisation",
        tells="The tokens of the right answer are compared with the most likely ones.",
        default=True,
        has_before=False,
        ask=partial(ask_right_answers, _SETTINGS),
    ),
)
