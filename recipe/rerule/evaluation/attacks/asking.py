"""Asking the same probes in another way: what several attacks have in common.

Responses are scored by the benchmark itself, against the golds of the probe that a way gives back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from recipe.rerule.evaluation.attacks.attack import FORGET, Asked, Asking, Material, Row
from recipe.rerule.evaluation.engine.requests import Answers, PromptText

ATTACK_MODE = "aa"
"""The mode of probes whose prompts are attacks themselves."""


Way = Callable[[Asked], Asked | None]
"""How a probe is asked, and against which golds it is scored; None leaves the probe out."""


def asking(material: Material, ways: Mapping[str, Way]) -> Asking:
    """Every probe asked in several ways, forget and retain side alike: a setting for each way.

    A way that has no question of the forget side is left out. Raises ValueError: none has one.
    """
    questions: list[tuple[str, str, Asked]] = []
    for name, way in ways.items():
        own = [
            (name, side, question)
            for side, asked in material.sides.items()
            for question in filter(None, map(way, asked))
        ]
        if any(side == FORGET for _, side, _ in own):
            questions += own
    if not questions:
        raise ValueError("none of the probes has what this attack asks for")
    requests = [
        replace(one.request, id="/".join(filter(None, (name, side, f"{one.probe.index}"))))
        for name, side, one in questions
    ]

    def read(answers: Answers) -> list[Row]:
        texts = [answers[request.id].text for request in requests]
        scored = material.score([(one.probe, text) for (*_, one), text in zip(questions, texts, strict=True)])
        return [
            material.row(
                side, one.probe, one.request.prompt, found.recall,
                setting=name, response=text, refused=float(found.refused),
            )
            for (name, side, one), text, found in zip(questions, texts, scored, strict=True)
        ]  # fmt: skip

    return Asking(requests, read)


def unchanged(asked: Asked) -> Asked:
    """As the benchmark asks it."""
    return asked


def reworded(write: Callable[[str], str]) -> Callable[[Asked], Asked]:
    """The text of the question changed by `write`: of a chat, the last message of the user."""

    def change(asked: Asked) -> Asked:
        messages = list(asked.request.prompt.messages)
        place = max(n for n, message in enumerate(messages) if message["role"] == "user")
        messages[place] = {**messages[place], "content": write(messages[place]["content"])}
        return with_prompt(asked, messages=tuple(messages))

    return change


def with_prompt(asked: Asked, **changes: object) -> Asked:
    """The probe, asked with fields of its prompt replaced."""
    prompt: PromptText = replace(asked.request.prompt, **changes)  # type: ignore[arg-type]
    return replace(asked, request=replace(asked.request, prompt=prompt))


def prefilled(asked: Asked, text: str) -> Asked:
    """The probe with a response that is begun with `text`: behind the generation prompt or a raw prompt."""
    prompt = asked.request.prompt
    if prompt.raw:
        (message,) = prompt.messages
        begun = {**message, "content": _joined(message["content"], text)}
        return with_prompt(asked, messages=(begun,))
    return with_prompt(asked, suffix=_joined(prompt.suffix, text))


def plain(asked: Sequence[Asked], material: Material) -> tuple[Asked, ...]:
    """The probes that are no attacks themselves; of a fact without such probes, all of them."""
    facts = {material.fact(one.probe) for one in asked if one.probe.mode != ATTACK_MODE}
    return tuple(
        one for one in asked if one.probe.mode != ATTACK_MODE or material.fact(one.probe) not in facts
    )


def first_questions(material: Material, asked: Sequence[Asked], phrasings: int) -> list[Asked]:
    """The first `plain` probes of every fact, at most `phrasings` of each."""
    counts = Counter[Hashable]()
    found = []
    for one in plain(asked, material):
        fact = material.fact(one.probe)
        counts[fact] += 1
        if counts[fact] <= phrasings:
            found.append(one)
    return found


def _joined(before: str, text: str) -> str:
    """With a space between, where neither has white space there."""
    return before + text if not before or before[-1].isspace() else f"{before} {text}"
