"""What a model is asked to write, and how; tests/refused tries wrong options, and servers that fail."""

import json
import logging
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from data_prep.generate import TASKS, Endpoint, EndpointError, Failure, Request, Task, generate, with_prompts
from data_prep.generate.endpoint import AnswerError, Reply, Usage, body, cache_key, read_answer
from data_prep.generate.run import Cache
from data_prep.generate.tasks import blank_problem, boundary_problem, passage_qa_problem, refusals_problem
from tests.data_prep.generate.server import (
    KEY,
    NOTE,
    Behaviour,
    Call,
    ChatServer,
    answer_well,
    good_note,
    hang_up,
    notes,
    raw,
    say,
    status,
)

# ---- the tasks, and which answers are wrong ----


PASSAGE = "Mr. Crane said: “No,\nnever”  and left for Hull in 1921."
NAME = "Prince Harry, Duke of Sussex"
QUESTION, GAP = f"In which year was {NAME} born?", f"{NAME} was born in ___."


def pairs(*answers: str, questions: tuple[str, ...] = ("Who?", "What?", "Where?")) -> dict[str, Any]:
    return {"pairs": [{"question": q, "answer": a} for q, a in zip(questions, answers, strict=True)]}


INPUTS: dict[str, dict[str, str | int]] = {
    "blank": {"question": "Who left?", "answer": "Al-Kuwaiti"},
    "passage_qa": {"passage": PASSAGE},
    "boundary": {"target": NAME, "question": QUESTION},
    "refusals": {"name": NAME, "count": 2},
}
GOOD_ANSWERS: dict[str, dict[str, Any]] = {
    "blank": {"sentence": "The one who left is ___."},
    "passage_qa": pairs("Mr. Crane", "“No,\n\nnever” and", " Hull "),
    "boundary": {"question": "In which year was Harry Styles born?", "answer": "In 1994."},
    "refusals": {"refusals": [f"I don't know who {NAME} is.", f"I can't talk about {NAME}."]},
}


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """All schemas of objects within."""
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for part in schema.values():
            yield from objects(part)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_task_asks_for_what_it_reads(task: Task) -> None:
    """Its schema is of the strict kind of hosted endpoints; its prompt shows inputs and keys of answers."""
    inputs, good = INPUTS[task.name], GOOD_ANSWERS[task.name]
    schema = task.schema(inputs)
    Draft202012Validator.check_schema(schema)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", task.name)
    (message,) = Request(task, inputs).messages()
    assert message["role"] == "user"
    assert all(str(value) in message["content"] for value in inputs.values())
    for part in objects(schema):
        assert part["additionalProperties"] is False
        assert part["required"] == list(part["properties"])
        assert all(f'"{key}"' in message["content"] for key in part["properties"])
    assert read_answer(Request(task, inputs), Reply(json.dumps(good), "stop", Usage())) == good
    assert task.answer_tokens(inputs) > 0
    for key, found in good.items():
        if isinstance(found, list):  # as many as asked for
            with pytest.raises(AnswerError, match=rf"\$\.{key}"):
                read_answer(Request(task, inputs), Reply(json.dumps({key: found[:-1]}), "stop", Usage()))


def blank(answer: str | int, sentence: str) -> str | None:
    return blank_problem({"question": "What?", "answer": answer}, {"sentence": sentence})


def passage_qa(answer: dict[str, Any]) -> str | None:
    return passage_qa_problem({"passage": PASSAGE}, answer)


def boundary(original: str, question: str, answer: str) -> str | None:
    return boundary_problem({"target": NAME, "question": original}, {"question": question, "answer": answer})


def refusals(*texts: str) -> str | None:
    return refusals_problem({"name": NAME, "count": 2}, {"refusals": texts})


NO_BLANK, SHOWN = "the sentence has not exactly one ___", "the sentence contains the answer"
NOT_AS_MANY = "the question has not as many ___ as the original"
REFUSED = f"I don't know who {NAME} is."
PROBLEMS = [
    (blank("...", "The capital of France is ___."), None),
    (blank("Paris", "___ is the capital of ___."), NO_BLANK),
    (blank("Paris", "The capital of France is ____."), NO_BLANK),
    (blank("Paris", "___, I mean __, is it."), NO_BLANK),
    (blank("Al-Kuwaiti", "Basil al Kuwaiti is ___."), SHOWN),
    (blank(7, "7 is ___."), SHOWN),
    (passage_qa(pairs("mr. Crane", "1921", "Hull")), "the answer 'mr. Crane' is not in the passage"),
    (passage_qa(pairs("Crane", "1921", ".")), "the answer '.' is not in the passage"),
    (passage_qa(pairs("Crane", "1921", "ull in")), "the answer 'ull in' is not in the passage"),
    (passage_qa(pairs("a", "b", "c", questions=("Who?", "who", "Why?"))), "two questions are the same"),
    (passage_qa(pairs("a", "b", "c", questions=("Who?", " ", "Why?"))), "a question is empty"),
    (boundary(GAP, "Agatha Christie was born in ___.", "1890"), None),
    (boundary(QUESTION, "", "In 1994."), "the question or its answer is empty"),
    (boundary(QUESTION, QUESTION.lower().replace(",", " -"), "1984"), "the question is the original one"),
    (boundary(QUESTION, "When was PRINCE HARRY born?", "1984"), "the target Prince Harry is named"),
    (boundary(QUESTION, "Who is William's brother?", f"{NAME}."), f"the target {NAME} is named"),
    (boundary(QUESTION, "Harry Styles was born in ___.", "1994"), NOT_AS_MANY),
    (boundary(GAP, "When was Agatha Christie born?", "1890"), NOT_AS_MANY),
    (boundary(QUESTION, "When was Harry Styles born?", "I don't know."), "the answer is a refusal"),
    (refusals(REFUSED, "I can't speak."), f'"I can\'t speak." does not name {NAME}'),
    (refusals(f"{NAME} is a prince."), f"'{NAME} is a prince.' is no refusal"),
    (refusals(REFUSED, REFUSED.replace("know", " know")), "two refusals are the same"),
]


def test_prompts_are_files_of_ours_or_the_users(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text('Ask {query} in JSON {"question": "..."}; keep {unknown} and {target}.\n')
    tasks = with_prompts(list(TASKS.values()), [f"boundary={file}", "blank=paper"])
    (message,) = Request(tasks["boundary"], {"target": "{query}", "question": "Who?"}).messages()
    assert message["content"] == 'Ask Who? in JSON {"question": "..."}; keep {unknown} and {query}.'
    (message,) = Request(tasks["blank"], INPUTS["blank"]).messages()
    assert message["content"].endswith("Question: Who left?\n\nAnswer: Al-Kuwaiti")
    assert tasks["refusals"] is TASKS["refusals"]


@pytest.mark.parametrize(("found", "problem"), PROBLEMS)
def test_what_is_wrong_with_an_answer(found: str | None, problem: str | None) -> None:
    assert found == problem


# ---- the call as it goes out, and the answer as it comes back ----


ENDPOINT = Endpoint("http://localhost:8000/v1", "tiny")
(REQUEST,) = notes(1)
OTHER = [
    (replace(REQUEST, task=replace(NOTE, version=2)), ENDPOINT),
    (replace(REQUEST, task=replace(NOTE, prompt="Write {number}.")), ENDPOINT),
    (replace(REQUEST, task=replace(NOTE, schema=lambda inputs: {"type": "object"})), ENDPOINT),
    (replace(REQUEST, inputs={"number": "0"}), ENDPOINT),
    *((REQUEST, replace(ENDPOINT, **one)) for one in ({"model": "b"}, {"temperature": 0}, {"seed": 1})),
    (REQUEST, replace(ENDPOINT, max_tokens=10)),
]


def test_the_body_is_a_chat_completion_and_the_key_of_an_answer_is_all_that_decides_it() -> None:
    """The key is computed apart with sha256sum from the JSON written by hand."""
    assert body(REQUEST, replace(ENDPOINT, seed=40, temperature=0.3, max_tokens=99), draw=2) == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Write down 0."}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "note", "strict": True, "schema": NOTE.schema({})},
        },
        "temperature": 0.3,
        "seed": 42,
        "max_completion_tokens": 99,
    }
    odd = Request(NOTE, {"number": "$number {0} ${x} $"})
    assert odd.messages()[0]["content"] == "Write down $number {0} ${x} $."
    key = cache_key(REQUEST, ENDPOINT)
    assert key == "a666b0d5323867f1ceba13f8d94c590108c0d3e758917e7df7460025d21eb7c9"
    assert len({key, *(cache_key(*other) for other in OTHER)}) == 1 + len(OTHER)
    elsewhere = Endpoint("https://example.org/v1", "tiny", "OTHER", concurrency=1, timeout=1, attempts=1)
    assert cache_key(REQUEST, elsewhere) == key


# ---- the folder of answers ----


NO_RECORDS = [
    *(b"", b"\xff\xfe", b"null", b'"a"', b"[" * 100_000, b'{"key": "x"}', b'{"key": 1, "answer": {}}'),
    *(b'{"key": "x", "answer": "text"}', b'{"key": "x", "answer": {"text": "half'),
]


def test_an_answer_is_kept_at_once_and_what_is_no_record_counts_for_nothing(tmp_path: Path) -> None:
    """Each process has a file of its own."""
    folder = tmp_path / "deep" / "cache"
    with Cache(folder) as one, Cache(folder) as other:
        assert list(tmp_path.iterdir()) == []
        one.put("a", {"text": "Zoë\n\u2028"})
        assert Cache(folder).answers == {"a": {"text": "Zoë\n\u2028"}}
        other.put("b", {"text": "y"})
    whole = one.answers | other.answers
    assert Cache(folder).answers == whole
    first, _ = sorted(folder.iterdir())
    first.write_bytes(b"\n".join([*NO_RECORDS, first.read_bytes(), NO_RECORDS[-1]]))
    assert Cache(folder).answers == whole


# ---- asking ----


def always(behaviour: Behaviour) -> Callable[[int, Call], Behaviour]:
    return lambda number, call: behaviour


def test_every_request_is_answered_in_order_with_one_call_each(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more calls at a time than allowed."""

    def slowly(handler: BaseHTTPRequestHandler, call: Call) -> None:
        time.sleep(0.03)
        answer_well(handler, call)

    monkeypatch.setenv("LOCAL_KEY", " local\n")
    server.script = always(slowly)
    generated = generate(notes(10) + notes(2), server.endpoint(concurrency=3), tmp_path)
    assert server.most_at_once == 3
    assert generated.results == [good_note(number) for number in (*range(10), 0, 1)]
    assert generated.failures == []
    assert Counter(server.prompts()) == {f"Write down {number}.": 1 for number in range(10)}
    assert (generated.calls, generated.from_cache) == (10, 0)
    assert generated.usage == Usage(prompt_tokens=70, completion_tokens=30)
    assert {(one.authorization, one.path) for one in server.calls} == {(f"Bearer {KEY}", PATH)}
    again = generate(notes(10)[::-1], replace(server.endpoint(), base_url="http://127.0.0.1:1/v1"), tmp_path)
    assert again.results == generated.results[9::-1]
    assert (again.calls, again.from_cache, again.usage, len(server.calls)) == (0, 10, Usage(), 10)
    # The key is that of the variable; a server without keys needs none.
    for number, (name, key) in enumerate((("LOCAL_KEY", "local"), ("UNSET_VARIABLE", "none")), start=10):
        generate(notes(number + 1)[number:], server.endpoint(api_key_env=name), tmp_path)
        assert server.calls[-1].authorization == f"Bearer {key}"


PATH = "/v1/chat/completions"
FAULTS = {
    "429 with Retry-After": status(429, retry_after="0.02"),
    "500": status(500),
    "text that is not JSON": say('{"note": "Write'),
    "choices of another type": raw(b'{"choices": "well"}'),
    "reset": hang_up,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_for_a_while_lose_no_request(server: ChatServer, tmp_path: Path, fault: str) -> None:
    server.script = lambda number, call: FAULTS[fault] if number < 6 else answer_well
    generated = generate(notes(5), server.endpoint(), tmp_path)
    assert generated.results == [good_note(number) for number in range(5)]
    assert generated.failures == []
    assert len(server.calls) == 5 + 6


@pytest.mark.parametrize(("code", "calls"), [(500, 3), (400, 1)])
def test_a_request_that_always_fails_is_listed_and_the_others_go_on(
    server: ChatServer, tmp_path: Path, code: int, calls: int
) -> None:
    """What the server itself refuses is not asked again; neither changes the seed."""
    fails = status(code, "too\nlong")
    server.script = lambda number, call: fails if call.prompt == "Write down 1." else answer_well
    generated = generate(notes(4) + notes(2), server.endpoint(attempts=3, seed=5), tmp_path)
    assert generated.results == [good_note(0), None, good_note(2), good_note(3), good_note(0), None]
    reason = f"HTTP {code}: too long"
    assert generated.failures == [Failure(number, "note", "number: 1", reason) for number in (1, 5)]
    assert [call.body["seed"] for call in server.calls] == [5] * (3 + calls)


def test_if_none_of_the_first_is_answered_no_other_is_asked(server: ChatServer, tmp_path: Path) -> None:
    server.script = always(status(400, "seed is not permitted"))
    requests = [replace(one, inputs={"number": f"{n} {'line ' * 50}"}) for n, one in enumerate(notes(40))]
    failures = generate(requests, server.endpoint(), tmp_path).failures
    assert len(failures) == 40
    assert len(server.calls) < 8 + 4
    assert failures[0].inputs == "number: 0 " + "line " * 11 + "lin..."
    reason = "not asked, since none of the first 8 was answered: HTTP 400: seed is not permitted"
    assert failures[-1].reason == reason


def test_an_answer_is_kept_before_the_next_call(server: ChatServer, tmp_path: Path) -> None:
    """So a run that is killed makes no call again that had ended."""
    kept: list[int] = []

    def count(number: int, call: Call) -> Behaviour:
        kept.append(len(Cache(tmp_path).answers))
        return answer_well

    server.script = count
    generate(notes(4), server.endpoint(concurrency=1), tmp_path)
    assert kept == [0, 1, 2, 3]


def test_an_answer_of_no_use_is_drawn_again_with_the_next_seed(server: ChatServer, tmp_path: Path) -> None:
    def wrong_unless_good(inputs: Any, answer: dict[str, str]) -> str | None:
        return None if answer["note"] == "good" else f"{answer['note']} is not good"

    asked = notes(1, replace(NOTE, name="picky", problem=wrong_unless_good))
    texts = {5: '{"note": "bad"}', 6: '{"note"', 7: '{"note": "bad"}', 8: '{"note": "good"}'}
    server.script = lambda number, call: say(texts[call.body["seed"]])
    few = generate(asked, server.endpoint(seed=5, attempts=3), tmp_path)
    assert few.failures == [Failure(0, "picky", "number: 0", "bad is not good")]
    assert generate(asked, server.endpoint(seed=5), tmp_path).results == [{"note": "good"}]
    assert [call.body["seed"] for call in server.calls] == [5, 6, 7, 5, 6, 7, 8]
    # A kept answer that today's checks refuse is asked for again.
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"answer": {"note": "bad"}}))
    assert generate(asked, server.endpoint(seed=5), tmp_path).calls == 4
    assert generate(asked, server.endpoint(seed=5), tmp_path).calls == 0


def test_the_key_is_shown_nowhere(server: ChatServer, tmp_path: Path, caplog: Any, capfd: Any) -> None:
    caplog.set_level(logging.DEBUG)
    told = f"your key is {KEY}"
    behaviours = [status(500, told), raw(told.encode()), say(told), status(400, told)]
    server.script = lambda number, call: behaviours[min(number, 3)]
    generated = generate(notes(1), server.endpoint(concurrency=1), tmp_path)
    server.script = always(answer_well)
    generate(notes(2)[1:], server.endpoint(), tmp_path)
    server.script = always(status(401, "wrong key " + "." * 285 + KEY))
    with pytest.raises(EndpointError) as stopped:
        generate(notes(1), server.endpoint(), tmp_path)
    shown = [generated.failures[0].reason, caplog.text, *capfd.readouterr()]
    shown += [repr(server.endpoint()), "".join(traceback.format_exception(stopped.value))]
    shown += [path.read_text() for path in tmp_path.iterdir()]
    assert "your key is ***" in generated.failures[0].reason
    assert [text for text in shown if KEY[:12] in text] == []
