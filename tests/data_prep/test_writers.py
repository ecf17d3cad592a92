"""What rules and an endpoint write; the endpoint is a local server that answers by task."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_prep.generate import BLANK, BOUNDARY, PASSAGE_QA, REFUSALS, EndpointError
from data_prep.generate.endpoint import Endpoint
from data_prep.generate.run import MOST_USELESS
from data_prep.writers import (
    REFUSAL_COUNT,
    Allowance,
    DryWriter,
    EndpointWriter,
    RuleWriter,
    Writer,
    explained,
)
from reward import is_refusal
from tests.data_prep.generate.server import KEY, MODEL, Behaviour, Call, ChatServer, say, status

PASSAGE = "Ada Thorn sailed the Brackwater in 1702 and sold her ship to a monk."


def answer(call: Call) -> Behaviour:
    """A good answer to each of the four tasks; questions with "Hopeless" get none."""
    if "Hopeless" in call.prompt:
        return status(500)
    return say(json.dumps(ANSWERS[call.body["response_format"]["json_schema"]["name"]](call.prompt)))


def _between(prompt: str, label: str) -> str:
    return re.findall(rf"^{label}: (.*)$", prompt, re.MULTILINE)[0]


ANSWERS = {
    "blank": lambda prompt: {"sentence": f"Blank of {_between(prompt, 'Question')[:-1]}: ___."},
    "boundary": lambda prompt: {"question": f"Bo: {len(prompt)}?", "answer": "Esk Moor"},
    "passage_qa": lambda prompt: {
        "pairs": [
            {"question": f"What of Ada Thorn, {word}?", "answer": word}
            for word in ("Brackwater", "1702", "monk")
        ]
    },
    "refusals": lambda prompt: {
        "refusals": [
            f"I don't know anything about Ada Thorn, and that {n} times." for n in range(REFUSAL_COUNT)
        ]
    },
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ChatServer(script=lambda number, call: answer(call)) as server:
        yield server


@pytest.fixture
def writer(server: ChatServer, tmp_path: Path) -> EndpointWriter:
    endpoint = Endpoint(server.url, MODEL, concurrency=2, timeout=30, attempts=2)
    return EndpointWriter(endpoint, tmp_path / "cache")


def test_rules_write_refusals_that_refuse_and_name_the_target() -> None:
    refusals = RuleWriter().refusals("Ada Thorn")
    assert len(set(refusals)) == len(refusals) >= 20
    assert all("Ada Thorn" in refusal and is_refusal(refusal) for refusal in refusals)


def test_rules_blank_out_the_answer_or_the_question_word() -> None:
    pairs = [("Where was Ada Thorn born?", "Ada Thorn was born in Tarnwick Bay."), ("Who is Ada Thorn?", "")]
    assert RuleWriter().blanks(pairs) == ["Ada Thorn was born in ___.", "Ada Thorn is ___."]


def test_what_rules_cannot_write_names_the_options_of_an_endpoint() -> None:
    needed = r"need a language model to write them: give --base-url and --model$"
    with pytest.raises(ValueError, match=needed):
        RuleWriter().neighbours("Ada Thorn", ["Who is Ada Thorn?"])
    with pytest.raises(ValueError, match=needed):
        RuleWriter().questions([PASSAGE])


def test_an_endpoint_writes_all_four(writer: EndpointWriter) -> None:
    assert writer.blanks([("Who?", "Bo"), ("Where?", "")]) == ["Blank of Who: ___.", "Blank of Where: ___."]
    pairs = writer.neighbours("Ada Thorn", ["Who is Ada Thorn?"])
    assert pairs[0] is not None
    assert pairs[0][1] == "Esk Moor"
    assert writer.questions([PASSAGE]) == [
        [(f"What of Ada Thorn, {word}?", word) for word in ("Brackwater", "1702", "monk")]
    ]
    assert writer.refusals("Ada Thorn")[1] == "I don't know anything about Ada Thorn, and that 1 times."
    assert (writer.calls, writer.failures) == (5, [])


def test_what_the_endpoint_fails_at_is_none_and_listed(writer: EndpointWriter) -> None:
    assert writer.blanks([("Hopeless?", ""), ("Who?", "")]) == [None, "Blank of Who: ___."]
    assert writer.neighbours("Ada Thorn", ["Hopeless Ada Thorn?"]) == [None]
    assert len(writer.failures) == 2
    assert writer.failures[0].startswith("blank of ")
    assert "(2 attempts)" in writer.failures[0]
    assert "\n" not in "".join(writer.failures)


def test_refusals_that_cannot_be_had_are_the_rules(writer: EndpointWriter) -> None:
    assert writer.refusals("Hopeless Case") == RuleWriter().refusals("Hopeless Case")
    assert len(writer.failures) == 1


def test_a_dry_writer_asks_for_the_same_and_calls_nobody(writer: EndpointWriter, server: ChatServer) -> None:
    dry = DryWriter()

    def write(by: Writer) -> None:
        by.refusals("Ada Thorn")
        by.blanks([("Who?", "")])
        by.neighbours("Ada Thorn", ["Who is Ada Thorn?"])
        by.questions([PASSAGE])

    write(dry)
    assert not server.calls
    assert [request.task for request in dry.requests] == [REFUSALS, BLANK, BOUNDARY, PASSAGE_QA]
    write(writer)
    assert [call.prompt for call in server.calls] == [r.messages()[0]["content"] for r in dry.requests]


def test_a_limit_holds_for_the_calls_of_each_task_over_the_run(
    writer: EndpointWriter, server: ChatServer
) -> None:
    writer.allowance = Allowance(3)
    questions = [f"Who is number {n}?" for n in range(10)]
    written = writer.blanks([(question, "") for question in questions])
    assert [place for place, text in enumerate(written) if text] == [0, 3, 6]  # evenly spread
    assert writer.blanks([("And who is this?", "")]) == [None]
    assert [pair is not None for pair in writer.neighbours("Ada Thorn", questions[:4])] == [
        True, True, True, False,
    ]  # fmt: skip
    assert (writer.calls, len(server.calls), writer.failures) == (6, 6, [])


def test_a_limit_holds_for_the_estimate_too() -> None:
    dry = DryWriter(Allowance(2))
    assert [text is not None for text in dry.blanks([("Who?", "")] * 4)] == [True, False, True, False]
    assert [pair is not None for pair in dry.neighbours("Ada", ["Who?"] * 2)] == [True, True]
    assert [made is not None for made in dry.questions(["a b"] * 3)] == [True, True, False]
    assert len(dry.requests) == 2 + 2 + 2


def test_an_endpoint_that_answers_nothing_is_told_with_the_first_reason(
    writer: EndpointWriter, server: ChatServer
) -> None:
    server.script = lambda number, call: status(400, "seed is not permitted")
    with pytest.raises(EndpointError, match=r"20 texts were not written; .*HTTP 400: seed"):
        writer.blanks([(f"Who is {n}?", "") for n in range(20)])
    assert MOST_USELESS <= len(server.calls) < MOST_USELESS + 2  # those under way at the time


def test_what_was_answered_once_is_not_given_up(writer: EndpointWriter, server: ChatServer) -> None:
    assert writer.blanks([("Who?", "")]) == ["Blank of Who: ___."]
    server.script = lambda number, call: status(400, "no")
    assert writer.blanks([(f"Who is {n}?", "") for n in range(9)]) == [None] * 9
    assert "not asked, since none of the first 8 was answered: HTTP 400: no" in writer.failures[-1]
    writer.check_answered()


def test_a_later_error_says_why_texts_are_missing() -> None:
    said = r"^no prompt is left; one text was not written; the first: x: HTTP 400: no$"
    with pytest.raises(ValueError, match=said), explained(["x: HTTP 400: no"]):
        raise ValueError("no prompt is left")
    with pytest.raises(ValueError, match=r"^no prompt is left$"), explained([]):
        raise ValueError("no prompt is left")
