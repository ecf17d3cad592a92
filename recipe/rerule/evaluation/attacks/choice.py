"""Audit by choice: is the right answer more likely than the answers to other facts of its kind?

Protocol: behind the benchmark's own prompt, the mean log-probability of a token of the right answer is
compared with those of answers to other facts of the same kind, without the end of the turn. The score is the
share of facts whose right answer is the most likely of CHOICES. A tie counts as what a coin would give, and
chance is 1 / CHOICES.

In the setting `without_name`, the log-probability of the same answer behind the same prompt without the name
is subtracted, so that answers that are likely for everybody win nothing. It leaves out facts whose prompt
does not hold the name.

The other answers are those to facts of the same side, as far as there are enough: a never-knew model prefers
answers that it has seen, and would be below chance among answers to facts to retain.

Facts are of one kind where their questions differ in the name alone. Where a benchmark has no such facts,
the other answers are of any kind.

Source: comparing the right answer with alternatives is the exposure of Carlini et al.
(arXiv:1802.08232); dividing by the probability without the condition is Holtzman et al. (arXiv:2104.08315).

Traps: other answers of another kind are easily told apart without knowing the fact; the never-knew model
shows how much that gives. Facts with fewer than CHOICES answers of their kind are left out, so that chance
is the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean as mean

from recipe.rerule.evaluation.attacks.attack import FORGET, RETAIN, Asking, Attack, Material, Options, Row
from recipe.rerule.evaluation.attacks.facts import (
    FactQuestion,
    comparable_questions,
    first_questions,
    same_kind_answers,
)
from recipe.rerule.evaluation.engine.requests import Answers, Likelihood, PromptText
from recipe.rerule.evaluation.metrics import right_answer

CHOICES = 4
"""Answers to choose from, the right one among them."""
NAMELESS = "..."
"""What stands in the prompt where the name was."""
WITHOUT_NAME = "without_name"


def hit(values: Sequence[float]) -> float:
    """1 where the first value is the highest, 0 where another one is; of t equal highest ones 1 / t."""
    right = values[0]
    return 0.0 if max(values) > right else 1 / values.count(right)


def nameless(question: FactQuestion) -> PromptText | None:
    """The prompt without the name of whom it is about; None where it does not hold the name."""
    messages = tuple(
        {**message, "content": question.probe.renamed(message["content"], NAMELESS)}
        for message in question.prompt.messages
    )
    changed = replace(question.prompt, messages=messages)
    return None if changed == question.prompt else changed


def _ask(material: Material, options: Options) -> Asking:
    asked: list[tuple[str, str, FactQuestion, list[Likelihood]]] = []
    for side, question, answers in _questions(material, options["phrasings"]):
        for setting, prompt in (("", question.prompt), (WITHOUT_NAME, nameless(question))):
            if prompt is not None:
                name = f"{side}/{question.probe.index}/{setting}"
                requests = [right_answer(f"{name}/{n}", prompt, text) for n, text in enumerate(answers)]
                asked.append((side, setting, question, requests))

    def read(answers: Answers) -> list[Row]:
        found: list[Row] = []
        named: dict[tuple[str, int], list[float]] = {}
        for side, setting, question, requests in asked:
            # Over the answer's tokens, without the end of its turn.
            values = [mean(answers[request.id].log_probs[:-1]) for request in requests]
            if setting:
                pairs = zip(named[side, question.probe.index], values, strict=True)
                values = [value - nameless for value, nameless in pairs]
            else:
                named[side, question.probe.index] = values
            row = material.row(side, question.probe, requests[0].prompt, hit(values), setting=setting)
            found.append(row)
        forget = {row["setting"] for row in found if row["side"] == FORGET}
        return [row for row in found if row["setting"] in forget]

    return Asking([request for *_, requests in asked for request in requests], read)


def _questions(material: Material, phrasings: int) -> list[tuple[str, FactQuestion, list[str]]]:
    """The questions of both sides with their answers to choose from, the right one first."""
    given = [
        (side, question)
        for side, asked in material.sides.items()
        for question in first_questions(material, asked, phrasings)
    ]
    kinds = {one.probe.index: one for one in comparable_questions([question for _, question in given])}
    comparable: dict[str, list[FactQuestion]] = {FORGET: [], RETAIN: []}
    for side, question in given:
        if question.probe.index in kinds:
            comparable[side].append(kinds[question.probe.index])
    found = []
    for side, other in ((FORGET, RETAIN), (RETAIN, FORGET)):
        own = same_kind_answers(comparable[side], ())
        all_ = same_kind_answers(comparable[side], comparable[other])
        for question, first, rest in zip(comparable[side], own, all_, strict=True):
            choices = list(dict.fromkeys([*first, *rest]))[:CHOICES]
            if len(choices) == CHOICES:
                found.append((side, question, choices))
    if not any(side == FORGET for side, *_ in found):
        raise ValueError(f"no fact to forget has {CHOICES} answers of its kind to choose from")
    return found


ATTACKS = (
    Attack(
        name="choice",
        title=f"1 of {CHOICES}",
        tells=f"The right answer is compared with {CHOICES - 1} answers to other facts of its kind.",
        default=True,
        quick={"phrasings": 1},
        full={"phrasings": 3},
        has_before=False,
        ask=_ask,
    ),
)
