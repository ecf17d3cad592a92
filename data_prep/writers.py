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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data_prep.contract import normalise
from data_prep.generate import MOST_USELESS, TASKS, Endpoint, EndpointError, Request, Task, generate
from data_prep.prompts import Prompt, make_prompt
from reward import names_of

# ---- fill-in-the-blank forms of questions, by rules alone ----
# The answer sentence loses what the question asks for. The forms are plainer than a language model's, and
# always there.


GAP = "___"

_QUOTED = re.compile(r"[\"“][^\"”]{2,80}[\"”]|(?<!\w)'[^']{2,80}'(?!\w)")
_DATE = re.compile(
    r"\b(?:\d{1,2}(?:st|nd|rd|th)? (?:of )?)?(?:January|February|March|April|May|June|July|August"
    r"|September|October|November|December)(?: \d{1,2}(?:st|nd|rd|th)?)?(?:,? \d{4})?\b|\b\d[\d,./-]*\b"
)
_NAME = re.compile(r"\b[A-Z][\w'’-]*(?:(?: (?:de|da|del|van|von|bin|al|of|the|and))? [A-Z][\w'’-]*)*\+?")


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
    length = len(_WORD.findall(name))
    if name in text or not length:  # "!!!" is a band
        return None
    words = list(_WORD.finditer(text))
    for first in range(len(words) - length + 1):
        found = re.sub("['’]s$", "", text[words[first].start() : words[first + length - 1].end()])
        if difflib.SequenceMatcher(None, found.casefold(), name.casefold()).ratio() >= _SIMILAR:
            return found
    return None


def correct_name(text: str, name: str) -> str:
    """`text` with what `misspelt_name` finds replaced by `name`."""
    found = misspelt_name(text, name)
    return text if found is None else text.replace(found, name)


# ---- who writes what a benchmark lacks ----


Pair = tuple[str, str]
"""Question and answer."""
REFUSAL_COUNT = 24


@dataclass
class Writer:
    """Writes what a benchmark lacks, by rules or by a model; a text that could not be had is None.

    Attributes:
        endpoint: of the model; None for rules alone.
        cache: folder that keeps the model's answers, so that none is paid for twice.
        limit: most requests of each task, spread evenly; the texts of the others are not written.
        dry: ask nothing, and write something of about the length instead.
        tasks: what the model is asked to write, by name; their prompts can be the user's.
        requests: what was asked for.
        failures: what could not be had and why, a line each.
        answered: how many requests have been answered, in this run or an earlier one.
    """

    endpoint: Endpoint | None = None
    cache: Path = Path()
    limit: int | None = None
    dry: bool = False
    tasks: Mapping[str, Task] = field(default_factory=lambda: TASKS)
    requests: list[Request] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    answered: int = 0

    def refusals(self, name: str) -> list[str]:
        """Sentences that decline and name the target."""
        (answer,) = self._ask("refusals", [{"name": name, "count": REFUSAL_COUNT}])
        return answer["refusals"] if answer else _refusals(name)

    def blanks(self, pairs: Sequence[Pair]) -> list[str | None]:
        """A fill-in-the-blank form of each question; its answer may be "" where none is known."""
        if self.endpoint is None:
            return [blank_answer(*pair) for pair in pairs]
        answers = self._ask("blank", [{"question": question, "answer": answer} for question, answer in pairs])
        return [answer["sentence"] if answer else None for answer in answers]

    def neighbours(self, target: str, questions: Sequence[str]) -> list[Pair | None]:
        """For each question on the target one on somebody else, and its answer."""
        self._need_endpoint(f"boundary questions, neighbours of those on {target},")
        answers = self._ask("boundary", [{"target": target, "question": question} for question in questions])
        return [(answer["question"], answer["answer"]) if answer else None for answer in answers]

    def questions(self, passages: Sequence[str]) -> list[list[Pair] | None]:
        """Questions on each passage, with their answers."""
        self._need_endpoint("questions on passages")
        answers = self._ask("passage_qa", [{"passage": passage} for passage in passages])
        return [
            [(pair["question"], pair["answer"]) for pair in answer["pairs"]] if answer else None
            for answer in answers
        ]

    def check_answered(self) -> None:
        """Raises EndpointError where requests failed and none at all was answered."""
        if self.endpoint is not None and self.failures and not self.answered:
            raise EndpointError(f"{self.endpoint.name}: nothing was written: {_why(self.failures)}")

    def _need_endpoint(self, what: str) -> None:
        if self.endpoint is None:
            raise ValueError(
                f"{what} are not among the files and need a language model to write them: give --base-url "
                "and --model"
            )

    def _ask(self, task: str, inputs: Sequence[dict[str, str | int]]) -> list[dict[str, Any] | None]:
        """The model's answers to all inputs that the limit allows; None for the others."""
        if self.endpoint is None:
            return [None] * len(inputs)
        left = len(inputs)
        if self.limit is not None:
            left = min(left, self.limit - sum(request.task.name == task for request in self.requests))
        places = [place * len(inputs) // left for place in range(left)]
        requests = [Request(self.tasks[task], inputs[place]) for place in places]
        self.requests += requests
        if self.dry:
            answers: list[Any] = [_stand_in(request) for request in requests]
        else:
            generated = generate(requests, self.endpoint, self.cache)
            answers = generated.results
            self.failures += [f"{one.task} of {one.inputs}: {one.reason}" for one in generated.failures]
            self.answered += len(generated.results) - len(generated.failures)
            if len(self.failures) >= MOST_USELESS:
                self.check_answered()
        found = dict(zip(places, answers, strict=True))
        return [found.get(place) for place in range(len(inputs))]


def _refusals(name: str) -> list[str]:
    return [template.format(name=name) for template in TEMPLATES]


def _stand_in(request: Request) -> dict[str, Any]:
    """An answer of about the length of a real one."""
    given = {name: str(value) for name, value in request.inputs.items()}
    if request.task.name == "refusals":
        return {"refusals": _refusals(given["name"])}
    if request.task.name == "blank":
        return {"sentence": blank_answer(given["question"], given["answer"])}
    if request.task.name == "boundary":
        return {"question": f"{given['question']} (neighbour)", "answer": "to be written"}
    asked = [f"{given['passage'][:80]} ({number})" for number in range(3)]
    return {"pairs": [{"question": question, "answer": "to be written"} for question in asked]}


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


# ---- prompts made from other prompts by a writer; what it could not write is left out ----


def with_refusals(prompts: Sequence[Prompt], writer: Writer, rng: random.Random) -> list[Prompt]:
    """The prompts; where one to be forgotten has no refusal one of the writer's, naming its target."""
    lacking = [prompt for prompt in prompts if prompt.side == "forget" and not prompt.refusal]
    keywords = dict.fromkeys(prompt.keyword for prompt in lacking)
    refusals = {keyword: writer.refusals(names_of(keyword)[0]) for keyword in keywords}
    drawn = {prompt.index: rng.choice(refusals[prompt.keyword]) for prompt in lacking}
    return [replace(prompt, refusal=drawn.get(prompt.index, prompt.refusal)) for prompt in prompts]


def blanks(prompts: Sequence[Prompt], first_index: int, writer: Writer) -> list[Prompt]:
    """Fill-in-the-blank forms of questions, numbered from `first_index` as their questions are."""
    written = writer.blanks([(prompt.query, prompt.golds[0] if prompt.golds else "") for prompt in prompts])
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
                index, origin = first_index + number, f"{prompt.origin}, its neighbour"
                question, answer = pair
                made.append(
                    make_prompt(
                        index, question, "retain", "neighbour", (answer,), origin, family=prompt.family
                    )
                )
    return made
