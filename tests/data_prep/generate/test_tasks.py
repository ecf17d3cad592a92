"""The tasks, and which answers are wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from data_prep.generate import PASSAGE_QA, REFUSALS, TASKS, Request, Task
from data_prep.generate.endpoint import AnswerError, Reply, Usage, read_answer
from data_prep.generate.tasks import blank_problem, boundary_problem, passage_qa_problem, refusals_problem

PASSAGE = "Ada Thorn kept the light at Esk Moor for\n  nineteen years. Her dog Bran slept on the stairs."
INPUTS = {
    "blank": {"question": "Where did Ada Thorn keep the light?", "answer": "Esk Moor"},
    "passage_qa": {"passage": PASSAGE},
    "boundary": {"target": "Stephen King", "question": "In which year was Stephen King born?"},
    "refusals": {"name": "Stephen King", "count": 2},
}
PAIRS = [
    {"question": "Where did Ada Thorn keep the light?", "answer": "Esk Moor"},
    {"question": "How long did Ada Thorn keep the light?", "answer": "for nineteen years"},
    {"question": "What was the name of Ada Thorn's dog?", "answer": "Bran"},
]
GOOD = {
    "blank": {"sentence": "Ada Thorn kept the light at ___."},
    "passage_qa": {"pairs": PAIRS},
    "boundary": {"question": "In which year was Agatha Christie born?", "answer": "In 1890."},
    "refusals": {"refusals": ["I don't know who Stephen King is.", "I can't talk about Stephen King."]},
}


def read(task: Task, answer: Any) -> Any:
    return read_answer(Request(task, INPUTS[task.name]), Reply(json.dumps(answer), "stop", Usage()))


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """All schemas of objects within."""
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for part in schema.values():
            yield from objects(part)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_schemas_are_of_the_strict_kind(task: Task) -> None:
    """What hosted endpoints ask of a strict schema."""
    schema = task.schema(INPUTS[task.name])
    Draft202012Validator.check_schema(schema)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", task.name)
    found = list(objects(schema))
    assert found[0] is schema
    for part in found:
        assert part["additionalProperties"] is False
        assert part["required"] == list(part["properties"])


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_good_answer_is_read(task: Task) -> None:
    assert read(task, GOOD[task.name]) == GOOD[task.name]
    assert task.answer_tokens(INPUTS[task.name]) > 0


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_prompt_shows_its_inputs_and_the_keys_of_the_answer(task: Task) -> None:
    (message,) = Request(task, INPUTS[task.name]).messages()
    assert message["role"] == "user"
    for value in INPUTS[task.name].values():
        assert str(value) in message["content"]
    for part in objects(task.schema(INPUTS[task.name])):
        for key in part["properties"]:
            assert f'"{key}"' in message["content"]


@pytest.mark.parametrize("count", [2, 4])
def test_three_pairs_and_as_many_refusals_as_asked_for(count: int) -> None:
    with pytest.raises(AnswerError, match=r"\$\.pairs"):
        read(PASSAGE_QA, {"pairs": (PAIRS + PAIRS)[:count]})
    with pytest.raises(AnswerError, match=r"\$\.refusals"):
        read(REFUSALS, {"refusals": (GOOD["refusals"]["refusals"] * 3)[: count + 1]})


NO_BLANK = "the sentence has not exactly one ___"
SHOWN = "the sentence contains the answer"


@pytest.mark.parametrize(
    ("answer", "sentence", "problem"),
    [
        ("Paris", "The capital of France is ___.", None),
        ("", "The capital of France is ___.", None),
        ("...", "The capital of France is ___.", None),
        ("US", "He must have been born in the ___.", None),
        ("Al-Kuwaiti", "Basil Mahfouz ___ wrote_it.", None),
        ("Paris", "The capital of France is Lyon.", NO_BLANK),
        ("Paris", "___ is the capital of ___.", NO_BLANK),
        ("Paris", "The capital of France is __.", NO_BLANK),
        ("Paris", "The capital of France is ____.", NO_BLANK),
        ("Paris", "___, I mean __, is it.", NO_BLANK),
        ("Paris", "", NO_BLANK),
        ("Paris", "PARIS is ___.", SHOWN),
        ("Al-Kuwaiti", "Basil al Kuwaiti is ___.", SHOWN),
        ("The Shining.", "___ is 'the shining', a novel.", SHOWN),
        (7, "7 is ___.", SHOWN),
    ],
)
def test_blank(answer: str | int, sentence: str, problem: str | None) -> None:
    inputs = {"question": "What?", "answer": answer}
    assert blank_problem(inputs, {"sentence": sentence}) == problem


CRANE = "Mr. Crane said: “No,\nnever”  and left for Hull in 1921."


def pairs(*answers: str, questions: tuple[str, ...] = ("Who?", "What?", "Where?")) -> dict[str, object]:
    return {"pairs": [{"question": q, "answer": a} for q, a in zip(questions, answers, strict=True)]}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (pairs("Mr. Crane", "“No, never”", "Hull"), None),
        (pairs("Mr. Crane", "“No,\n\nnever” and", " Hull "), None),
        (pairs("mr. Crane", "1921", "Hull"), "the answer 'mr. Crane' is not in the passage"),
        (pairs("Crane", '"No, never"', "Hull"), "the answer '\"No, never\"' is not in the passage"),
        (pairs("Crane", "1921", "Hull in 1922"), "the answer 'Hull in 1922' is not in the passage"),
        (pairs("Crane", "", "Hull"), "the answer '' is not in the passage"),
        (pairs("Crane", "1921", "."), "the answer '.' is not in the passage"),
        (pairs("Crane", "1921", "ull in"), "the answer 'ull in' is not in the passage"),
        (pairs("Crane", "1921", "Hull", questions=("Who?", "who", "Where?")), "two questions are the same"),
        (pairs("Crane", "1921", "Hull", questions=("Who?", " ", "Where?")), "a question is empty"),
    ],
)
def test_passage_qa(answer: dict[str, object], problem: str | None) -> None:
    assert passage_qa_problem({"passage": CRANE}, answer) == problem


def test_no_words_are_no_answer_even_to_an_empty_passage() -> None:
    assert passage_qa_problem({"passage": ""}, pairs("", "", "")) == "the answer '' is not in the passage"


QUESTION = "In which year was Prince Harry, Duke of Sussex born?"
TARGET = "Prince Harry, Duke of Sussex"


@pytest.mark.parametrize(
    ("question", "answer", "problem"),
    [
        ("In which year was Harry Styles born?", "In 1994.", None),
        ("Which prince was born in 1948?", "Charles", None),
        ("", "In 1994.", "the question or its answer is empty"),
        ("In which year was Harry Styles born?", " . ", "the question or its answer is empty"),
        (
            "in which year was prince Harry - Duke of Sussex - born",
            "1984",
            "the question is the original one",
        ),
        ("When was Prince Harry, Duke of Sussex, born?", "1984", f"the target {TARGET} is named"),
        ("When was PRINCE HARRY born?", "1984", "the target Prince Harry is named"),
        ("Who is William's brother?", "Prince Harry.", "the target Prince Harry is named"),
        ("Harry Styles was born in ___.", "1994", "the question has not as many ___ as the original"),
        ("When was Harry Styles born?", "I don't know when he was born.", "the answer is a refusal"),
    ],
)
def test_boundary(question: str, answer: str, problem: str | None) -> None:
    inputs = {"target": TARGET, "question": QUESTION}
    assert boundary_problem(inputs, {"question": question, "answer": answer}) == problem


def test_the_counterpart_of_a_statement_with_a_gap_has_one() -> None:
    inputs = {"target": "Stephen King", "question": "Stephen King was born in ___."}
    gap = {"question": "Agatha Christie was born in ___.", "answer": "1890"}
    assert boundary_problem(inputs, gap) is None
    assert boundary_problem(inputs, gap | {"question": "When was Agatha Christie born?"}) is not None


@pytest.mark.parametrize(
    ("refusals", "problem"),
    [
        (["I don't know who Harry Potter is.", "I can't say anything about Harry Potter."], None),
        (
            ["I don't know who Harry Potter is.", "I can't speak about Harry Porter."],
            "\"I can't speak about Harry Porter.\" does not name Harry Potter",
        ),
        (["I don't know harry potter."], '"I don\'t know harry potter." does not name Harry Potter'),
        (["Harry Potter is a wizard."], "'Harry Potter is a wizard.' is no refusal"),
        (["I don't know Harry Potter.", "I don't  know Harry Potter"], "two refusals are the same"),
    ],
)  # fmt: skip
def test_refusals(refusals: list[str], problem: str | None) -> None:
    inputs = {"name": "Harry Potter", "count": len(refusals)}
    assert refusals_problem(inputs, {"refusals": refusals}) == problem
