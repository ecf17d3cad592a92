"""What a model is asked to write: the tasks, their prompts, and what makes an answer wrong.

A prompt is a file, prompts/TASK.NAME.txt or one of the user's own. Each {input} of the task in it is
replaced, and {query} stands for the question or passage. `project` is the default. `paper` asks what the
prompts of the ReRULE paper's appendix A ask, in other words: they say less of what makes an answer good. The
form of an answer is sent apart, as a JSON schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_prep.contract import normalise
from data_prep.sources import read_text, shown
from reward.keyword import contains_keyword
from reward.refusal import is_refusal

# ---- A task is one kind of generated data; a request is one call of it ----


PROMPTS = Path(__file__).parent / "prompts"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
Inputs = Mapping[str, str | int]
Answer = dict[str, Any]
Schema = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One kind of generated data.

    Attributes:
        name: of the JSON schema on the wire and of the task in failures: letters, digits, "_" and "-".
        version: part of every cache key; raise it when `problem` comes to judge differently.
        prompt: the user's turn, in which each {name} of an input stands for it.
        schema: the JSON schema of the answer to a request with these inputs; every key required, no others.
        problem: what is wrong with an answer of that schema, or None; it must not depend on anything else.
        needs: placeholders of which a prompt must hold one.
        answer_tokens: about how many tokens an answer takes, for the estimate of the cost.
    """

    name: str
    version: int
    prompt: str
    schema: Callable[[Inputs], Schema]
    problem: Callable[[Inputs, Answer], str | None]
    needs: tuple[str, ...]
    answer_tokens: Callable[[Inputs], int]


@dataclass(frozen=True)
class Request:
    """One call of a task; the inputs are those that the task's prompt names."""

    task: Task
    inputs: Inputs

    def messages(self) -> list[dict[str, str]]:
        """The conversation to send: one user turn, which every chat template can render."""
        known = dict(self.inputs)
        for name in known.keys() & {"question", "passage"}:  # a task has one of them at most
            known["query"] = known[name]
        text = _PLACEHOLDER.sub(lambda found: str(known.get(found[1], found[0])), self.task.prompt)
        return [{"role": "user", "content": text}]

    def schema(self) -> Schema:
        """The JSON schema of the answer."""
        return self.task.schema(self.inputs)

    def summary(self) -> str:
        """The inputs in one line, long ones shortened."""
        lines = {name: " ".join(str(value).split()) for name, value in self.inputs.items()}
        short = {name: line if len(line) <= 60 else line[:60] + "..." for name, line in lines.items()}
        return ", ".join(f"{name}: {line}" for name, line in short.items())


# ---- what makes an answer of the right schema wrong; None where nothing does ----
# Texts are compared as `data_prep.contract.normalise` gives them: words in lower case, without punctuation.


BLANK_MARK = "___"


def blank_problem(inputs: Inputs, answer: Answer) -> str | None:
    """One blank of three underscores, and the answer not beside it."""
    sentence = answer["sentence"]
    if _blanks(sentence) != [BLANK_MARK]:
        return f"the sentence has not exactly one {BLANK_MARK}"
    if _names(sentence, inputs["answer"]):
        return "the sentence contains the answer"
    return None


def passage_qa_problem(inputs: Inputs, answer: Answer) -> str | None:
    """Questions that differ, and answers that are words of the passage, spaces and line breaks apart."""
    passage = _one_line(str(inputs["passage"]))
    questions = [normalise(pair["question"]) for pair in answer["pairs"]]
    if "" in questions:
        return "a question is empty"
    if len(set(questions)) < len(questions):
        return "two questions are the same"
    for pair in answer["pairs"]:
        if not _names(passage, pair["answer"]) or _one_line(pair["answer"]) not in passage:
            return f"the answer {shown(pair['answer'])} is not in the passage"
    return None


def boundary_problem(inputs: Inputs, answer: Answer) -> str | None:
    """Another question of the same form, about somebody else, with an answer that is one."""
    question, original = answer["question"], str(inputs["question"])
    if not normalise(question) or not normalise(answer["answer"]):
        return "the question or its answer is empty"
    if normalise(question) == normalise(original):
        return "the question is the original one"
    if _blanks(question) != _blanks(original):
        return f"the question has not as many {BLANK_MARK} as the original"
    # "Prince Harry" of "Prince Harry, Duke of Sussex" is the target too
    for name in (str(inputs["target"]), str(inputs["target"]).split(",")[0]):
        if _names(f"{question} {answer['answer']}", name):
            return f"the target {name} is named"
    return "the answer is a refusal" if is_refusal(answer["answer"]) else None


def refusals_problem(inputs: Inputs, answer: Answer) -> str | None:
    """Refusals that all differ, each with the name letter by letter."""
    name, refusals = str(inputs["name"]), answer["refusals"]
    for refusal in refusals:
        if not contains_keyword(refusal, name):
            return f"{shown(refusal)} does not name {name}"
        if not is_refusal(refusal):
            return f"{shown(refusal)} is no refusal"
    return "two refusals are the same" if len(set(map(normalise, refusals))) < len(refusals) else None


def facts_problem(inputs: Inputs, answer: Answer) -> str | None:
    """Questions that differ, each with the name letter by letter."""
    name, questions = str(inputs["name"]), [one for fact in answer["facts"] for one in fact["questions"]]
    for question in questions:
        if name not in question:
            return f"{shown(question)} does not name {name}"
    return "two questions are the same" if len(set(map(normalise, questions))) < len(questions) else None


def neighbours_problem(inputs: Inputs, answer: Answer) -> str | None:
    """Names that differ, and of which none has the name."""
    names = [normalise(one) for one in answer["names"]]
    if "" in names or len(set(names)) < len(names):
        return "a name is empty, or there twice"
    held = next((one for one in names if _names(one, inputs["name"])), None)
    return None if held is None else f"the target {inputs['name']} is named"


def _blanks(text: str) -> list[str]:
    return re.findall("__+", text)


def _names(text: str, words: str | int) -> bool:
    """Whether the words stand in the text, in their order; no words stand nowhere."""
    wanted = normalise(str(words))
    return wanted != "" and f" {wanted} " in f" {normalise(text)} "


def _one_line(text: str) -> str:
    return " ".join(text.split())


# ---- the tasks ----


PAIRS = PHRASINGS = 3


def prompt_text(task: str, choice: str) -> str:
    """The prompt of that name for the task, or the file's of that path. Raises ValueError, OSError."""
    named = {path.name.split(".")[1]: path for path in sorted(PROMPTS.glob(f"{task}.*.txt"))}
    if choice not in named and not Path(choice).is_file():
        raise ValueError(f"--prompt {task}={choice}: no such file; give a file, or {' or '.join(named)}")
    return read_text(named.get(choice, Path(choice))).strip()


def with_prompts(tasks: Sequence[Task], choices: Sequence[str]) -> dict[str, Task]:
    """The tasks by name, with the prompts of choices TASK=NAME or TASK=FILE. Raises ValueError, OSError."""
    found = {task.name: task for task in tasks}
    for given in choices:
        name, _, choice = given.partition("=")
        if name not in found or not choice:
            raise ValueError(f"--prompt {given}: give TASK=FILE with TASK one of {', '.join(found)}")
        text = prompt_text(name, choice)
        if not set(_PLACEHOLDER.findall(text)) & set(found[name].needs):
            needed = " or ".join(f"{{{one}}}" for one in found[name].needs)
            raise ValueError(f"--prompt {given}: the prompt has no {needed}, so that it would ask nothing")
        found[name] = replace(found[name], prompt=text)
    return found


def _object(**properties: Any) -> Schema:
    """An object of exactly these keys."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Schema, count: int) -> Schema:
    return {"type": "array", "items": items, "minItems": count, "maxItems": count}


_TEXT = {"type": "string"}

BLANK = Task(
    name="blank",
    version=1,
    prompt=prompt_text("blank", "project"),
    schema=lambda inputs: _object(sentence=_TEXT),
    problem=blank_problem,
    needs=("query", "question"),
    answer_tokens=lambda inputs: 35,
)
"""(question, answer) to {"sentence"}: a fill-in-the-blank form; `answer` may be "" where none is known."""

PASSAGE_QA = Task(
    name="passage_qa",
    version=1,
    prompt=prompt_text("passage_qa", "project"),
    schema=lambda inputs: _object(pairs=_list(_object(question=_TEXT, answer=_TEXT), PAIRS)),
    problem=passage_qa_problem,
    needs=("query", "passage"),
    answer_tokens=lambda inputs: 120,
)
"""(passage) to {"pairs": [{"question", "answer"}] * 3}; the answers are spans of the passage."""

BOUNDARY = Task(
    name="boundary",
    version=1,
    prompt=prompt_text("boundary", "project"),
    schema=lambda inputs: _object(question=_TEXT, answer=_TEXT),
    problem=boundary_problem,
    needs=("query", "question"),
    answer_tokens=lambda inputs: 50,
)
"""(target, question) to {"question", "answer"}: a neighbour of the question, about somebody else."""

REFUSALS = Task(
    name="refusals",
    version=1,
    prompt=prompt_text("refusals", "project"),
    schema=lambda inputs: _object(refusals=_list(_TEXT, int(inputs["count"]))),
    problem=refusals_problem,
    needs=("name",),
    answer_tokens=lambda inputs: 10 + 20 * int(inputs["count"]),
)
"""(name, count) to {"refusals": [sentence] * count}: sentences that decline and name the target."""

FACTS = Task(
    name="facts",
    version=1,
    prompt=prompt_text("facts", "project"),
    schema=lambda inputs: _object(
        facts=_list(_object(questions=_list(_TEXT, PHRASINGS)), int(inputs["count"]))
    ),
    problem=facts_problem,
    needs=("name",),
    answer_tokens=lambda inputs: 60 * int(inputs["count"]),
)
"""(name, count) to {"facts": [{"questions": [text] * 3}] * count}: phrasings of questions about the name."""

NEIGHBOURS = Task(
    name="neighbours",
    version=1,
    prompt=prompt_text("neighbours", "project"),
    schema=lambda inputs: _object(names=_list(_TEXT, int(inputs["count"]))),
    problem=neighbours_problem,
    needs=("name",),
    answer_tokens=lambda inputs: 10 * int(inputs["count"]),
)
"""(name, count) to {"names": [text] * count}: things that are like it."""

TASKS = {task.name: task for task in (BLANK, PASSAGE_QA, BOUNDARY, REFUSALS)}
"""Those that the commands of benchmarks have; `recipe.rerule.about` has the other two."""
