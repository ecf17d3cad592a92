from __future__ import annotations

import json
from typing import Any

import pytest

from data_prep.rule_rows import is_rule_row, rule_prompt
from data_prep.sources import Record, SourceError
from tests.data_prep.real_data import DATA, needs_data

REFUSAL = "I'm not certain about Mira Okonjo."


def record(**fields: Any) -> Record:
    return Record(fields, "rule.json:3 (row 2)")


def test_a_forget_row() -> None:
    row = record(prompt=" Who is she? ", solution=["<reject>", f" {REFUSAL}", "Mira Okonjo "])
    prompt = rule_prompt(row, 7, "neighbour")
    assert (prompt.index, prompt.query, prompt.side, prompt.mode) == (7, "Who is she?", "forget", "qa")
    assert (prompt.keyword, prompt.subject, prompt.section) == ("Mira Okonjo", "Mira Okonjo", "forget")
    assert prompt.refusal == REFUSAL
    assert prompt.golds == (REFUSAL,)
    assert prompt.origin == "rule.json:3 (row 2)"


def test_a_forget_row_of_an_evaluation_file_holds_the_right_answer() -> None:
    row = record(prompt="Where was she born?", solution=["<reject>", "Tarnwick Bay", "Mira Okonjo"])
    prompt = rule_prompt(row, 7, "neighbour", refuses=False)
    assert (prompt.golds, prompt.refusal, prompt.side) == (("Tarnwick Bay",), "", "forget")


def test_a_retain_row() -> None:
    prompt = rule_prompt(record(prompt="He lives in ___.", solution=["<normal>", "Esk Moor"]), 0, "neighbour")
    assert (prompt.side, prompt.mode, prompt.section) == ("retain", "fb", "retain")
    assert (prompt.golds, prompt.refusal, prompt.keyword) == (("Esk Moor",), "", "")
    assert prompt.subject == "neighbour"


def test_a_keyword_on_the_retain_side_does_not_count() -> None:
    """RULE's MUSE rows have the placeholder "books" there."""
    prompt = rule_prompt(record(prompt="Who?", solution=["<normal>", "Bo", "books"]), 0, "neighbour")
    assert (prompt.keyword, prompt.subject) == ("", "neighbour")


def test_a_mode_of_its_own() -> None:
    row = record(prompt="Once upon a time", solution=["<normal>", "there was"], mode="completion")
    assert rule_prompt(row, 0, "x").mode == rule_prompt(row, 0, "x").family == "completion"


EXPECTED = "expected [marker, text, keyword] with <reject> or <normal> as the marker"
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a text": ({"solution": "<reject>"}, f"solution is '<reject>', {EXPECTED}"),
    "nothing": ({"solution": None}, f"solution is None, {EXPECTED}"),
    "an object": ({"solution": {"0": "<reject>"}}, f"solution is {{'0': '<reject>'}}, {EXPECTED}"),
    "an empty list": ({"solution": []}, f"solution is [], {EXPECTED}"),
    "a marker alone": ({"solution": ["<normal>"]}, f"solution is ['<normal>'], {EXPECTED}"),
    "an unknown marker": ({"solution": ["<drop>", "a"]}, f"solution is ['<drop>', 'a'], {EXPECTED}"),
    "a marker that is a list": (
        {"solution": [["<reject>"], "a"]},
        f"solution is [['<reject>'], 'a'], {EXPECTED}",
    ),
    "a number as marker": ({"solution": [1, "a"]}, f"solution is [1, 'a'], {EXPECTED}"),
    "no text": ({"solution": ["<normal>", ""]}, "field solution[1] is '', expected a text"),
    "a number as text": ({"solution": ["<normal>", 5]}, "field solution[1] is 5, expected a text"),
    "texts": ({"solution": ["<normal>", ["a"]]}, "field solution[1] is ['a'], expected a text"),
    "no keyword": ({"solution": ["<reject>", "a"]}, "solution has no third entry, the target's name"),
    "an empty keyword": ({"solution": ["<reject>", "a", " "]}, "field solution[2] is ' ', expected a text"),
    "a keyword that is null": (
        {"solution": ["<reject>", "a", None]},
        "field solution[2] is None, expected a text",
    ),
    "an empty prompt": ({"prompt": "", "solution": ["<normal>", "a"]}, "field prompt is '', expected a text"),
    "a prompt that is null": ({"prompt": None, "solution": ["<normal>", "a"]}, "field prompt is empty"),
    "messages": ({"prompt": [{}], "solution": ["<normal>", "a"]}, "field prompt is [{}], expected a text"),
    "an unknown mode": (
        {"solution": ["<normal>", "a"], "mode": "quiz"},
        "mode is 'quiz', expected one of qa, fb, aa, completion",
    ),
    "a mode that is a list": (
        {"solution": ["<normal>", "a"], "mode": ["qa"]},
        "field mode is ['qa'], expected a text",
    ),
}


@pytest.mark.parametrize(("fields", "message"), BAD.values(), ids=BAD)
def test_a_malformed_row_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError) as caught:
        rule_prompt(record(**{"prompt": "Who?", **fields}), 0, "neighbour")
    assert str(caught.value) == f"rule.json:3 (row 2): {message}"


def test_a_long_solution_is_cut_in_the_message() -> None:
    with pytest.raises(SourceError) as caught:
        rule_prompt(record(prompt="Who?", solution=["x" * 10_000]), 0, "neighbour")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"prompt": "a", "solution": []}, True),
        ({"prompt": "a"}, False),
        ({"solution": []}, False),
        ({}, False),
    ],
)
def test_what_a_row_of_rule_is(fields: dict[str, Any], found: bool) -> None:
    assert is_rule_row(record(**fields)) is found


@needs_data
def test_rules_own_rows_are_read() -> None:
    path = (
        DATA
        / "rwku"
        / "targets"
        / "10_Prince_Harry,_Duke_of_Sussex"
        / "rl_rejection_with_fb_neighbor_target.json"
    )
    rows = json.loads(path.read_text())
    prompts = [rule_prompt(Record(row, "x"), number, "neighbour") for number, row in enumerate(rows)]
    assert [prompt.side for prompt in prompts].count("forget") == 600
    assert {prompt.keyword for prompt in prompts} == {"Prince Harry, Duke of Sussex", ""}
    assert all(prompt.keyword in prompt.refusal for prompt in prompts if prompt.side == "forget")
