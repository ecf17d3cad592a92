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

import random
from collections.abc import Iterable, Sequence
from statistics import fmean as mean

import pandas as pd

from recipe.rerule.evaluation.attacks.asking import first_questions, with_prompt
from recipe.rerule.evaluation.attacks.attack import (
    FORGET,
    RETAIN,
    Asked,
    Asking,
    Attack,
    Material,
    Options,
    Row,
)
from recipe.rerule.evaluation.engine.requests import Answers, Likelihood
from recipe.rerule.evaluation.metrics import right_answer
from recipe.rerule.evaluation.probes import Probe

CHOICES = 4
"""Answers to choose from, the right one among them."""
NAMELESS = "..."
"""What stands in the prompt where the name was."""
WITHOUT_NAME = "without_name"
ANY_KIND = ""


def hit(values: Sequence[float]) -> float:
    """1 where the first value is the highest, 0 where another one is; of t equal highest ones 1 / t."""
    right = values[0]
    return 0.0 if max(values) > right else 1 / values.count(right)


def nameless(question: Asked) -> Asked | None:
    """The question without the name of whom it is about; None where it does not hold the name."""
    messages = tuple(
        {**message, "content": question.probe.renamed(message["content"], NAMELESS)}
        for message in question.request.prompt.messages
    )
    changed = with_prompt(question, messages=messages)
    return None if changed == question else changed


def kinds_of(questions: Sequence[Asked]) -> pd.DataFrame:
    """The columns `kind` and `answer` of the questions whose answers can be swapped within their kind.

    In such a kind, no answer is that of more than half of the questions. The questions of all other kinds are
    of ANY_KIND together. Where that kind has too few different answers as well, its questions are left out.
    The index of the table has the places of the questions. Raises ValueError where no question is left.
    """
    probes = [one.probe for one in questions]
    texts = [probe.query or probe.messages[-1]["content"] for probe in probes]
    kinds = [probe.renamed(text, "{subject}") for probe, text in zip(probes, texts, strict=True)]
    table = pd.DataFrame({"kind": kinds, "answer": [probe.golds[0] for probe in probes]})

    def swappable() -> pd.Series[bool]:
        answers = table.groupby("kind")["answer"]
        return answers.transform(lambda of_kind: of_kind.value_counts().max() / len(of_kind)) <= 0.5

    table.loc[~swappable(), "kind"] = ANY_KIND
    found = table[swappable()]
    if found.empty:
        raise ValueError(
            f"{len(table)} questions have too few different answers to be compared with each other"
        )
    return found


def _ask(material: Material, options: Options) -> Asking:
    asked: list[tuple[str, str, Asked, list[Likelihood]]] = []
    for side, question, choices in _questions(material, options["phrasings"]):
        for setting, way in (("", question), (WITHOUT_NAME, nameless(question))):
            if way is not None:
                name, prompt = f"{side}/{question.probe.index}/{setting}", way.request.prompt
                requests = [right_answer(f"{name}/{n}", prompt, text) for n, text in enumerate(choices)]
                asked.append((side, setting, way, requests))

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
            prompt = requests[0].prompt
            found.append(material.row(side, question.probe, prompt, hit(values), setting=setting))
        forget = {row["setting"] for row in found if row["side"] == FORGET}
        return [row for row in found if row["setting"] in forget]

    return Asking([request for *_, requests in asked for request in requests], read)


def _questions(material: Material, phrasings: int) -> list[tuple[str, Asked, list[str]]]:
    """The questions of both sides with their answers to choose from, the right one first."""
    given = [
        (side, question)
        for side, asked in material.sides.items()
        for question in first_questions(material, asked, phrasings)
    ]
    table = kinds_of([question for _, question in given])
    table["side"] = [given[number][0] for number in table.index]
    answers = table.groupby(["side", "kind"])["answer"].unique().map(list).to_dict()
    found = []
    for number, right, side, kind in table[["answer", "side", "kind"]].itertuples():
        question = given[number][1]
        own = answers[side, kind]
        other = answers.get((RETAIN if side == FORGET else FORGET, kind), [])
        drawn = [*_others(question.probe, own), *_others(question.probe, [*own, *other])]
        choices = list(dict.fromkeys([right, *drawn]))[:CHOICES]
        if len(choices) == CHOICES:
            found.append((side, question, choices))
    if not any(side == FORGET for side, *_ in found):
        raise ValueError(f"no fact to forget has {CHOICES} answers of its kind to choose from")
    return found


def _others(probe: Probe, answers: Iterable[str]) -> list[str]:
    """The different answers that are not right ones of the probe, in random order."""
    rest = [answer for answer in dict.fromkeys(answers) if answer not in probe.golds]
    random.Random(f"answers 0 {probe.index}").shuffle(rest)
    return rest


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
