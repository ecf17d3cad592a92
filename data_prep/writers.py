"""Who writes what a benchmark lacks: rules, or a language model behind an endpoint.

| text | rules | endpoint |
|---|---|---|
| refusals that name the target | templates | written |
| fill-in-the-blank forms of questions | by rules | written |
| neighbours of questions, about somebody else | none | written |
| questions on a passage | none | written |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from data_prep.blanks import blank_answer, blank_question
from data_prep.generate import (
    BLANK,
    BOUNDARY,
    MOST_USELESS,
    PASSAGE_QA,
    REFUSALS,
    Endpoint,
    EndpointError,
    Request,
    generate,
)
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
class Allowance:
    """How many requests of each task may be made: `limit`, or any number where that is None."""

    limit: int | None = None
    _made: Counter[str] = field(default_factory=Counter)

    def places(self, requests: Sequence[Request]) -> list[int]:
        """Which of the requests, all of one task, may be made: as many as are left, evenly spread."""
        if self.limit is None or not requests:
            return list(range(len(requests)))
        task = requests[0].task.name
        count = min(len(requests), self.limit - self._made[task])
        self._made[task] += count
        return [place * len(requests) // count for place in range(count)]


@dataclass
class EndpointWriter:
    """A language model's writing; every answer is kept in `cache_folder`, so none is paid for twice.

    Attributes:
        allowance: of requests; what it does not cover is not written.
        answered: how many requests have been answered, in this run or an earlier one.
    """

    endpoint: Endpoint
    cache_folder: Path
    allowance: Allowance = field(default_factory=Allowance)
    failures: list[str] = field(default_factory=list)
    calls: int = 0
    answered: int = 0

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

    def check_answered(self) -> None:
        """Raises EndpointError where requests failed and none at all was answered."""
        if self.failures and not self.answered:
            raise EndpointError(f"{self.endpoint.name}: nothing was written: {_why(self.failures)}")

    def _ask(self, requests: list[Request]) -> list[dict[str, Any] | None]:
        places = self.allowance.places(requests)
        generated = generate([requests[place] for place in places], self.endpoint, self.cache_folder)
        self.calls += generated.calls
        self.failures += [
            f"{failure.task} of {failure.inputs}: {failure.reason} ({failure.attempts} attempts)"
            for failure in generated.failures
        ]
        self.answered += len(generated.results) - len(generated.failures)
        if len(self.failures) >= MOST_USELESS:
            self.check_answered()
        found = dict(zip(places, generated.results, strict=True))
        return [found.get(place) for place in range(len(requests))]


@contextmanager
def explained(failures: Sequence[str]) -> Iterator[None]:
    """Adds to a ValueError why texts were not written: what is missing is often missing for that reason."""
    try:
        yield
    except EndpointError:
        raise
    except ValueError as error:
        if not failures:
            raise
        raise ValueError(f"{error}; {_why(failures)}") from error


def _why(failures: Sequence[str]) -> str:
    count = "one text was" if len(failures) == 1 else f"{len(failures)} texts were"
    return f"{count} not written; the first: {failures[0]}"


@dataclass
class DryWriter:
    """Asks nothing and notes what would be asked; its texts have about the length of real ones."""

    allowance: Allowance = field(default_factory=Allowance)
    requests: list[Request] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    calls: int = 0

    def refusals(self, name: str) -> list[str]:
        self._note([Request(REFUSALS, {"name": name, "count": REFUSAL_COUNT})])
        return RuleWriter().refusals(name)

    def blanks(self, pairs: Sequence[Pair]) -> list[str | None]:
        written = self._note([Request(BLANK, {"question": q, "answer": a}) for q, a in pairs])
        texts = RuleWriter().blanks(pairs)
        return [text if place in written else None for place, text in enumerate(texts)]

    def neighbours(self, target: str, questions: Sequence[str]) -> list[Pair | None]:
        written = self._note([Request(BOUNDARY, {"target": target, "question": q}) for q in questions])
        pairs = [(f"{question} (neighbour)", "to be written") for question in questions]
        return [pair if place in written else None for place, pair in enumerate(pairs)]

    def questions(self, passages: Sequence[str]) -> list[list[Pair] | None]:
        written = self._note([Request(PASSAGE_QA, {"passage": passage}) for passage in passages])
        return [
            [(f"{passage[:80]} ({n})", "to be written") for n in range(3)] if place in written else None
            for place, passage in enumerate(passages)
        ]

    def _note(self, requests: list[Request]) -> set[int]:
        places = self.allowance.places(requests)
        self.requests += [requests[place] for place in places]
        return set(places)


def _needs_endpoint(what: str) -> str:
    return (
        f"{what} are not among the files and need a language model to write them: give --base-url and --model"
    )
