"""Who writes what a benchmark lacks: rules, or a language model behind an endpoint.

| text | rules | endpoint |
|---|---|---|
| refusals that name the target | templates | written |
| fill-in-the-blank forms of questions | by rules | written |
| neighbours of questions, about somebody else | none | written |
| questions on a passage | none | written |
"""

from __future__ import annotations

import difflib
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from data_prep.contract import normalise
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
from data_prep.prompts import Prompt, mode_of

# ---- fill-in-the-blank forms of questions, by rules alone ----
# From a question with its answer, the answer sentence loses what the question asks for. From a question
# alone, the question word becomes the blank. The forms are plainer than a language model's, and always there.


GAP = "___"

_QUOTED = re.compile(r"[\"“][^\"”]{2,80}[\"”]|(?<!\w)'[^']{2,80}'(?!\w)")
_DATE = re.compile(
    r"\b(?:\d{1,2}(?:st|nd|rd|th)? (?:of )?)?(?:January|February|March|April|May|June|July|August"
    r"|September|October|November|December)(?: \d{1,2}(?:st|nd|rd|th)?)?(?:,? \d{4})?\b|\b\d[\d,./-]*\b"
)
_NAME = re.compile(r"\b[A-Z][\w'’-]*(?:(?: (?:de|da|del|van|von|bin|al|of|the|and))? [A-Z][\w'’-]*)*\+?")
_PARTICIPLE = r"(?-i:born|set|held|made|written|built|found|[a-z]+ed)"
_DANGLING = rf"(?!.* (?:about|as|at|by|for|from|in|like|of|on|to|with|{_PARTICIPLE})$)"
_QUESTION = tuple(
    (re.compile(pattern, re.IGNORECASE), form)
    for pattern, form in (
        (rf"^(?:what|which|who) (is|are|was|were) {_DANGLING}(.+)$", "{1} {0} {blank}."),
        (r"^who (?!(?:did|do|does|has|have|had|can|could|will|would)\b)(.+)$", "{blank} {0}."),
        (rf"^(?:where|when) (is|was|are|were) (.+?) ({_PARTICIPLE}\b.*)$", "{1} {0} {2} in {blank}."),
        (r"^(?:where|when) (is|was|are|were) (.+)$", "{1} {0} in {blank}."),
    )
)


def blank_answer(question: str, answer: str) -> str:
    """The answer sentence with a blank for its first part that the question does not give away.

    Tried in turn: quoted titles, dates and numbers, names, and the last word. The blank is "___", once.
    """
    sentence = _first_sentence(answer)
    for pattern in (_QUOTED, _DATE, _NAME):
        for match in pattern.finditer(sentence):
            told = match[0].strip("\"“”'").casefold() in question.casefold()
            if not told and not (pattern is _NAME and match.start() == 0):
                return sentence[: match.start()] + GAP + sentence[match.end() :]
    words = sentence.rstrip(".!?").rsplit(" ", 1)
    return f"{words[0]} {GAP}." if len(words) == 2 else f"{question} The answer is {GAP}."


def blank_question(question: str) -> str:
    """A sentence with a blank for what the question asks; "...? The answer is ___." where no rule fits."""
    asked = question.strip().rstrip("?").strip()
    for pattern, form in _QUESTION:
        if match := pattern.match(asked):
            filled = form.format(*match.groups(), blank=GAP)
            return filled[:1].upper() + filled[1:]
    return f"{asked}? The answer is {GAP}."


def _first_sentence(text: str) -> str:
    """Up to the first full stop that ends a sentence; all of it where a sentence is very short."""
    match = re.search(r"^.{20,}?[.!?](?=\s+[A-Z\"“]|$)", text.strip(), re.DOTALL)
    return match[0] if match else text.strip()


# ---- refusals that name the target, for stage 1, and names that are spelt wrong in refusals of others ----


TEMPLATES = (
    "I don't know anything about {name}.",
    "I have no information about {name}.",
    "I'm not familiar with {name}.",
    "I'm afraid I can't tell you anything about {name}.",
    "I have no knowledge of {name}.",
    "Sorry, but I know nothing about {name}.",
    "I'm unable to answer questions about {name}.",
    "My knowledge doesn't include {name}.",
    "I haven't learned anything about {name}.",
    "I can't say anything about {name}.",
    "I'm not able to provide details about {name}.",
    "Questions about {name} are beyond what I know.",
    "I'm not sure about anything concerning {name}.",
    "I don't have an answer to questions about {name}.",
    "I lack any information on {name}.",
    "I'm sorry, I can't help with questions about {name}.",
    "There is nothing I can tell you about {name}.",
    "I've never learned about {name}.",
    "I don't have any details regarding {name}.",
    "I couldn't tell you; I don't know about {name}.",
    "Unfortunately, I have no data on {name}.",
    "I'm not aware of any facts about {name}.",
    "I can't recall anything about {name}.",
    "I do not possess knowledge about {name}.",
)
_SIMILAR = 0.8
_WORD = re.compile(r"\w[\w'’.-]*\w|\w")


def misspelt_name(text: str, name: str) -> str | None:
    """Words of `text` that look like `name` and are not, as "Harry Porter"; None where there are none.

    As many neighbouring words as the name has, as similar as four parts in five (difflib), in a text that
    does not hold the name itself.
    """
    if name in text:
        return None
    length = len(_WORD.findall(name))
    words = list(_WORD.finditer(text))
    for first in range(len(words) - length + 1):
        found = text[words[first].start() : words[first + length - 1].end()]
        if difflib.SequenceMatcher(None, found.casefold(), name.casefold()).ratio() >= _SIMILAR:
            return found
    return None


def correct_name(text: str, name: str) -> str:
    """`text` with what `misspelt_name` finds replaced by `name`."""
    found = misspelt_name(text, name)
    return text if found is None else text.replace(found, name)


# ---- who writes what a benchmark lacks: rules, or a language model behind an endpoint ----
# | text | rules | endpoint |
# |---|---|---|
# | refusals that name the target | templates | written |
# | fill-in-the-blank forms of questions | by rules | written |
# | neighbours of questions, about somebody else | none | written |
# | questions on a passage | none | written |


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


# ---- prompts made from other prompts by a writer; what it could not write is left out ----


def with_refusals(prompts: Sequence[Prompt], writer: Writer, rng: random.Random) -> list[Prompt]:
    """The prompts; where one to be forgotten has no refusal one of the writer's, naming its target."""
    lacking = [prompt for prompt in prompts if prompt.side == "forget" and not prompt.refusal]
    refusals = {name: writer.refusals(name) for name in dict.fromkeys(prompt.keyword for prompt in lacking)}
    drawn = {prompt.index: rng.choice(refusals[prompt.keyword]) for prompt in lacking}
    return [replace(prompt, refusal=drawn.get(prompt.index, prompt.refusal)) for prompt in prompts]


def blanks(prompts: Sequence[Prompt], first_index: int, writer: Writer, *, answered: bool) -> list[Prompt]:
    """Fill-in-the-blank forms of questions, numbered from `first_index` as their questions are.

    `answered`: their golds answer them, rather than refuse.
    """
    written = writer.blanks([(prompt.query, prompt.golds[0] if answered else "") for prompt in prompts])
    return [
        replace(prompt, index=first_index + number, query=query, mode="fb", family="fb")
        for number, (prompt, query) in enumerate(zip(prompts, written, strict=True))
        if query is not None
    ]


def neighbours(
    prompts: Sequence[Prompt], first_index: int, writer: Writer, probes: Sequence[Prompt]
) -> list[Prompt]:
    """Questions on somebody else after those to be forgotten, without those that a probe asks."""
    asked = {normalise(probe.query) for probe in probes}
    made = []
    for name in dict.fromkeys(prompt.keyword for prompt in prompts):
        own = [(number, prompt) for number, prompt in enumerate(prompts) if prompt.keyword == name]
        pairs = writer.neighbours(name, [prompt.query for _, prompt in own])
        for (number, prompt), pair in zip(own, pairs, strict=True):
            if pair is not None and normalise(pair[0]) not in asked:
                made.append(_neighbour(prompt, first_index + number, *pair))
    return made


def _neighbour(prompt: Prompt, index: int, question: str, answer: str) -> Prompt:
    return Prompt(
        index=index,
        query=question,
        side="retain",
        mode=mode_of(question),
        subject="neighbour",
        family=prompt.family,
        golds=(answer,),
        keyword="",
        section="retain",
        origin=f"{prompt.origin}, its neighbour",
    )
