"""What relearning trains on: true answers, retained answers, benign text, or wrong answers.

- forget half: the true answers to the facts of one half; the facts of the other half are scored.
- retain: right answers about people or topics that were never to be forgotten.
- benign: prompts and answers from elsewhere, in other syntax.
- wrong answers: the prompts of the forget half with the answers to other facts of the same kind. If true
  answers to held-out questions return all the same, the attack has undone refusing; it has not taught.

Golds come from probes, since the golds of training rows can be refusals.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from recipe.rerule.evaluation.attacks.leaks import find_leaks
from recipe.rerule.evaluation.probes import Probe

Message = dict[str, str]


@dataclass(frozen=True)
class Row:
    """A prompt and the answer to be learnt.

    Attributes:
        name: what messages call the row: its kind and number.
        messages: the prompt.
        raw: whether the one message goes to a base model as it is.
    """

    name: str
    messages: list[Message]
    answer: str
    raw: bool = False

    @property
    def text(self) -> str:
        """All that the model is shown: the prompt's messages and the answer, a line each."""
        return "\n".join([*(message["content"] for message in self.messages), self.answer])


def true_answers(probes: Sequence[Probe], kind: str = "forget-half") -> list[Row]:
    """Each probe with its first gold; named KIND INDEX."""
    return [Row(f"{kind} {probe.index}", probe.messages, probe.golds[0], probe.raw) for probe in probes]


def retained(probes: Sequence[Probe]) -> list[Row]:
    """The probes of the retain side with their first golds; named "retain INDEX".

    Raises:
        ValueError: there are none.
    """
    found = [probe for probe in probes if probe.section == "retain"]
    if not found:
        raise ValueError("there are no probes of section retain to make relearning rows of")
    return true_answers(found, "retain")


def benign(pairs: Sequence[tuple[str, str]]) -> list[Row]:
    """Rows of (prompt, answer); named "benign NUMBER", from 0.

    Raises:
        ValueError: an answer is empty.
    """
    for number, (_, answer) in enumerate(pairs):
        if not answer.strip():
            raise ValueError(f"benign row {number} has an empty answer")
    return [
        Row(f"benign {n}", [{"role": "user", "content": p}], answer) for n, (p, answer) in enumerate(pairs)
    ]


def wrong_answers(
    probes: Sequence[Probe],
    fact: Callable[[Probe], Hashable],
    seed: int,
    kind: Callable[[Probe], Hashable] = lambda probe: (probe.mode, probe.family),
) -> list[Row]:
    """Each probe with the first gold of another fact's probe of the same kind; named "wrong INDEX".

    Args:
        fact: which fact a probe asks for.
        kind: which probes can take each other's answers.

    Raises:
        ValueError: naming a probe for which there is no other answer of its kind.
    """
    generator = random.Random(f"wrong answers {seed}")
    rows = []
    for probe in probes:
        others = [
            other.golds[0]
            for other in probes
            if kind(other) == kind(probe) and fact(other) != fact(probe) and other.golds[0] not in probe.golds
        ]
        if not others:
            raise ValueError(f"probe {probe.index} has no wrong answer: no other fact of its kind has one")
        rows.append(Row(f"wrong {probe.index}", probe.messages, generator.choice(others), probe.raw))
    return rows


def without_leaks(rows: Sequence[Row], golds: Sequence[str]) -> list[Row]:
    """The rows that hold no scored answer, for benchmarks that ask one fact in several rows."""
    leaking = {leak.row for leak in find_leaks(rows, golds)}
    return [row for row in rows if row.name not in leaking]


def scored_golds(probes: Sequence[Probe]) -> list[str]:
    """Every gold of the probes, once, in order: what no row may hold."""
    return list(dict.fromkeys(gold for probe in probes for gold in probe.golds))
