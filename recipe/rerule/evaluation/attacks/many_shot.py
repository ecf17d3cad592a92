"""Attack by examples: questions of the retain side with their answers stand before the question.

Protocol: retain rows of --train, drawn at random once for all probes and models, as turns of a conversation
before the question (before a raw prompt: as text). Rows that hold a gold of the forget side are left out: to
put the tested fact there would be copying, not remembering. An example may hold the answer to a question of
the retain side, whose recall may be too high for that. Where the examples do not fit into the context of the
models, fewer are taken.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from recipe.rerule.evaluation.attacks.asking import asking, with_prompt
from recipe.rerule.evaluation.attacks.attack import Asked, Asking, Attack, Material, Options, shown
from recipe.rerule.evaluation.attacks.rows import TrainingRow, golds_of, retained, without_leaks

_TURN_TOKENS = 32
"""What a chat template may write around the two messages of an example."""


def _ask(material: Material, options: Options) -> Asking:
    rows = without_leaks(retained(material.train), golds_of(material.asked))
    shots = _fitting(material, random.Random("many shots 0").sample(rows, min(options["shots"], len(rows))))
    if not shots:
        raise ValueError(
            "many_shot has no examples: no retain row of --train is free of the scored answers and short "
            "enough for the context of the models"
        )
    return asking(material, {"": partial(_shown, shots)})


def _shown(shots: Sequence[TrainingRow], asked: Asked) -> Asked:
    prompt = asked.request.prompt
    if prompt.raw:
        text = "\n".join(f"{shot.messages[-1]['content']} {shot.answer}" for shot in shots)
        (message,) = prompt.messages
        whole = {**message, "content": f"{text}\n{message['content']}"}
        return with_prompt(asked, messages=(whole,))
    turns = [
        turn for shot in shots for turn in (shot.messages[-1], {"role": "assistant", "content": shot.answer})
    ]
    system = [message for message in prompt.messages[:1] if message["role"] == "system"]
    own = prompt.messages[len(system) :]
    return with_prompt(asked, messages=(*system, *turns, *own))


def _fitting(material: Material, shots: Sequence[TrainingRow]) -> list[TrainingRow]:
    """As many of the first shots as fit into the context behind the longest question, by a safe count."""
    if material.context is None:
        return list(shots)

    def tokens(text: str) -> int:
        return len(material.tokenizer(text, add_special_tokens=False).input_ids)

    room = material.context - max(
        tokens(shown(one.request.prompt)) + one.request.max_tokens + 2 * _TURN_TOKENS
        for one in (*material.asked, *material.retained)
    )
    found = []
    for shot in shots:
        room -= tokens(shot.text) + _TURN_TOKENS
        if room < 0:
            break
        found.append(shot)
    return found


ATTACKS = (
    Attack(
        name="many_shot",
        title="many shots",
        tells="Answered questions of the retain side stand before the question.",
        default=True,
        quick={"shots": 8},
        full={"shots": 32},
        needs=frozenset({"train"}),
        ask=_ask,
    ),
)
