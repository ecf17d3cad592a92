from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from data_prep.generate import Request
from data_prep.generate.endpoint import MalformedError, Reply, Usage, read_answer
from recipe.rerule.evaluation.naturalness import rubric
from recipe.rerule.evaluation.naturalness.rubric import (
    AXES,
    NOTE,
    PROMPT,
    SCHEMA,
    TASK,
    percent,
    rubric_sha256,
)

DOC = (Path(__file__).resolve().parents[3] / "docs" / "naturalness.md").read_text()
REQUEST = Request(TASK, {"question": "Who?", "reference": "Ada", "reply": "Ada."})


def read(text: str) -> dict[str, int]:
    return read_answer(REQUEST, Reply(text, "stop", Usage()))


def test_the_documentation_shows_the_rubric_as_it_is_with_its_hash() -> None:
    assert f"```text\n{PROMPT}\n```" in DOC
    assert rubric_sha256() in DOC
    assert NOTE in " ".join(DOC.split())


def test_the_schema_is_of_the_strict_kind() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["required"] == list(SCHEMA["properties"]) == list(AXES)
    assert SCHEMA["additionalProperties"] is False


def test_scores_are_read() -> None:
    assert read('{"readability": 5, "helpfulness": 1, "truthfulness": 3}') == {
        "readability": 5,
        "helpfulness": 1,
        "truthfulness": 3,
    }


@pytest.mark.parametrize("score", [0, 6, -1, 4.5, "4", None, True, [4], 10**30])
def test_what_is_no_score_of_the_scale_is_refused(score: object) -> None:
    with pytest.raises(MalformedError, match=r"breaks the schema at \$\.helpfulness"):
        read(json.dumps({"readability": 5, "helpfulness": score, "truthfulness": 3}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5 5 5",
        '{"readability": 5, "helpfulness": 1}',
        '{"readability": 5, "helpfulness": 1, "truthfulness": 3, "all": 3}',
        "[5, 1, 3]",
        '{"readability": 5, "helpfulness": NaN, "truthfulness": 3}',
    ],
)
def test_what_is_no_answer_of_the_form_is_refused(text: str) -> None:
    with pytest.raises(MalformedError):
        read(text)


def test_the_scale_is_0_to_100() -> None:
    assert [percent(score) for score in (1, 2, 3, 4, 5)] == [0, 25, 50, 75, 100]


def test_another_wording_has_another_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = rubric_sha256()
    monkeypatch.setattr(rubric, "PROMPT", PROMPT + " ")
    assert rubric_sha256() != before


@pytest.mark.parametrize("axis", AXES)
def test_every_scale_has_five_described_steps(axis: str) -> None:
    block = PROMPT.split(f"\n{axis}: ")[1].split("\n\n")[0]
    assert [line[:4] for line in block.splitlines()[1:]] == [f"{score} = " for score in (5, 4, 3, 2, 1)]
