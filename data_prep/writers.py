"""Who writes what a benchmark lacks: rules, or a language model behind an endpoint.

| text | rules | endpoint |
|---|---|---|
| refusals that name the target | templates | written |
| fill-in-the-blank forms of questions | by rules | written |
| neighbours of questions, about somebody else | none | written |
| questions on a passage | none | written |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from data_prep.blanks import blank_answer, blank_question
from data_prep.generate import BLANK, BOUNDARY, PASSAGE_QA, REFUSALS, Endpoint, Request, generate
from data_prep.refusals import TEMPLATES

Pair = tuple[str, str]
"""Question and answer."""
REFUSAL_COUNT = 24


class Writer(Protocol):
    """Writes what a benchmark lacks; a text that could not be had is None.

    Attributes:
        failures: what could not be had and why, a line each.
        calls: of the endpoint.
    """

    failures: list[str]
    calls: int

    def refusals(self, name: str) -> list[str]:
        """Sentences that decline and name the target."""

    def blanks(self, pairs: Sequence[Pair]) -> list[str | None]:
        """A fill-in-the-blank form of each question; its answer may be "" where none is known."""

    def neighbours(self, target: str, questions: Sequence[str]) -> list[Pair | None]:
        """For each question on the target one on somebody else, and its answer."""

    def questions(self, passages: Sequence[str]) -> list[list[Pair] | None]:
        """Questions on each passage, with their answers."""


@dataclass
class RuleWriter:
    """What rules can write, always and at once."""

    failures: list[str] = field(default_factory=list)
    calls: int = 0

    def refusals(self, name: str) -> list[str]:
        return [template.format(name=name) for template in TEMPLATES]

    def blanks(self, pairs: Sequence[Pair]) -> list[str | None]:
        return [
            blank_answer(question, answer) if answer else blank_question(question)
            for question, answer in pairs
        ]

    def neighbours(self, target: str, questions: Sequence[str]) -> list[Pair | None]:
        raise ValueError(_needs_endpoint(f"boundary questions, neighbours of those on {target},"))

    def questions(self, passages: Sequence[str]) -> list[list[Pair] | None]:
        raise ValueError(_needs_endpoint("questions on passages"))


@dataclass
class EndpointWriter:
    """A language model's writing; every answer is kept in `cache_folder`, so none is paid for twice."""

    endpoint: Endpoint
    cache_folder: Path
    failures: list[str] = field(default_factory=list)
    calls: int = 0

    def refusals(self, name: str) -> list[str]:
        (answer,) = self._ask([Request(REFUSALS, {"name": name, "count": REFUSAL_COUNT})])
        return answer["refusals"] if answer else RuleWriter().refusals(name)

    def blanks(self, pairs: Sequence[Pair]) -> list[str | None]:
        answers = self._ask([Request(BLANK, {"question": q, "answer": a}) for q, a in pairs])
        return [answer["sentence"] if answer else None for answer in answers]

    def neighbours(self, target: str, questions: Sequence[str]) -> list[Pair | None]:
        answers = self._ask([Request(BOUNDARY, {"target": target, "question": q}) for q in questions])
        return [(answer["question"], answer["answer"]) if answer else None for answer in answers]

    def questions(self, passages: Sequence[str]) -> list[list[Pair] | None]:
        answers = self._ask([Request(PASSAGE_QA, {"passage": passage}) for passage in passages])
        return [
            [(pair["question"], pair["answer"]) for pair in answer["pairs"]] if answer else None
            for answer in answers
        ]

    def _ask(self, requests: list[Request]) -> list[dict[str, Any] | None]:
        generated = generate(requests, self.endpoint, self.cache_folder)
        self.calls += generated.calls
        self.failures += [
            f"{failure.task} of {failure.inputs}: {failure.reason} ({failure.attempts} attempts)"
            for failure in generated.failures
        ]
        return generated.results


@dataclass
class DryWriter:
    """Asks nothing and notes what would be asked; its texts have about the length of real ones."""

    requests: list[Request] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    calls: int = 0

    def refusals(self, name: str) -> list[str]:
        self.requests.append(Request(REFUSALS, {"name": name, "count": REFUSAL_COUNT}))
        return RuleWriter().refusals(name)

    def blanks(self, pairs: Sequence[Pair]) -> list[str | None]:
        self.requests += [Request(BLANK, {"question": q, "answer": a}) for q, a in pairs]
        return RuleWriter().blanks(pairs)

    def neighbours(self, target: str, questions: Sequence[str]) -> list[Pair | None]:
        self.requests += [Request(BOUNDARY, {"target": target, "question": q}) for q in questions]
        return [(f"{question} (neighbour)", "to be written") for question in questions]

    def questions(self, passages: Sequence[str]) -> list[list[Pair] | None]:
        self.requests += [Request(PASSAGE_QA, {"passage": passage}) for passage in passages]
        return [[(f"{passage[:80]} ({n})", "to be written") for n in range(3)] for passage in passages]


def _needs_endpoint(what: str) -> str:
    return (
        f"{what} are not among the files and need a language model to write them: give --base-url and --model"
    )
