from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from data_prep.generate import BLANK, BOUNDARY, PASSAGE_QA, REFUSALS, TASKS, Request, Task
from data_prep.generate.call import Reply, Usage, read_answer
from data_prep.generate.errors import MalformedError, UnfitError

DOC = Path(__file__).resolve().parents[3] / "docs" / "generation.md"

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


def test_each_task_is_found_by_its_name() -> None:
    assert TASKS == {"blank": BLANK, "passage_qa": PASSAGE_QA, "boundary": BOUNDARY, "refusals": REFUSALS}


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


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_documentation_shows_the_prompt_as_it_is(task: Task) -> None:
    assert f"```text\n{task.prompt}\n```" in DOC.read_text()


@pytest.mark.parametrize("count", [2, 4])
def test_three_pairs_and_as_many_refusals_as_asked_for(count: int) -> None:
    with pytest.raises(MalformedError, match=r"\$\.pairs"):
        read(PASSAGE_QA, {"pairs": (PAIRS + PAIRS)[:count]})
    with pytest.raises(MalformedError, match=r"\$\.refusals"):
        read(REFUSALS, {"refusals": (GOOD["refusals"]["refusals"] * 3)[: count + 1]})


def test_a_wrong_answer_is_unfit() -> None:
    with pytest.raises(UnfitError, match="the sentence contains the answer"):
        read(BLANK, {"sentence": "Ada Thorn kept the ___ at Esk Moor."})
