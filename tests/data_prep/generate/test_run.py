from __future__ import annotations

import json
import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from data_prep.generate import EndpointError, Failure, Usage, estimate, generate, pace
from tests.data_prep.generate.server import (
    KEY,
    NOTE,
    Behaviour,
    Call,
    ChatServer,
    answer_well,
    good_note,
    hang_up,
    hang_up_halfway,
    notes,
    raw,
    say,
    status,
    trickle,
)


def first(count: int, behaviour: Behaviour) -> Callable[[int, Call], Behaviour]:
    """A script that misbehaves for `count` calls."""
    return lambda number, call: behaviour if number < count else answer_well


def always(behaviour: Behaviour) -> Callable[[int, Call], Behaviour]:
    return lambda number, call: behaviour


def for_prompt(prompt: str, behaviour: Behaviour) -> Callable[[int, Call], Behaviour]:
    return lambda number, call: behaviour if call.prompt == prompt else answer_well


def by_seed(texts: dict[int, str]) -> Callable[[int, Call], Behaviour]:
    return lambda number, call: say(texts[call.body["seed"]])


def test_every_request_is_answered_in_order_with_one_call_each(server: ChatServer, tmp_path: Path) -> None:
    generated = generate(notes(10), server.endpoint(), tmp_path)
    assert generated.results == [good_note(number) for number in range(10)]
    assert generated.failures == []
    assert Counter(server.prompts()) == {f"Write down {number}.": 1 for number in range(10)}
    assert (generated.calls, generated.from_cache) == (10, 0)
    assert generated.usage == Usage(prompt_tokens=70, completion_tokens=30)
    assert {call.authorization for call in server.calls} == {f"Bearer {KEY}"}
    assert {call.path for call in server.calls} == {"/v1/chat/completions"}


def test_no_more_calls_at_a_time_than_allowed(server: ChatServer, tmp_path: Path) -> None:
    def slowly(handler: BaseHTTPRequestHandler, call: Call) -> None:
        time.sleep(0.05)
        answer_well(handler, call)

    server.script = always(slowly)
    generate(notes(12), server.endpoint(concurrency=3), tmp_path)
    assert server.most_at_once == 3


FAULTS = {
    "429 with Retry-After": status(429, retry_after="0.02"),
    "429 without": status(429),
    "503 with Retry-After": status(503, retry_after="0.02"),
    "503 without": status(503),
    "500": status(500),
    "text that is not JSON": say('{"note": "Write'),
    "text that breaks the schema": say('{"memo": "Write down"}'),
    "empty text": say(""),
    "no text": say(None),
    "cut off": say('{"note": "Wri', finish_reason="length"),
    "half a surrogate pair": say('{"note": "\\ud800"}'),
    "very deep text": say("[" * 200_000),
    "body that is not JSON": raw(b'{"choices": [{'),
    "empty body": raw(b""),
    "empty page": raw(b"", content_type="text/html"),
    "no choices": raw(b'{"choices": []}'),
    "choices of another type": raw(b'{"choices": "well"}'),
    "message of another type": raw(b'{"choices": [{"message": "well"}]}'),
    "a list": raw(b"[1, 2]"),
    "not text at all": raw(b"\xff\xfe\x00"),
    "reset": hang_up,
    "half a response": hang_up_halfway,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_out_of_order_for_a_while_loses_no_request(
    server: ChatServer, tmp_path: Path, fault: str
) -> None:
    server.script = first(6, FAULTS[fault])
    generated = generate(notes(5), server.endpoint(), tmp_path)
    assert generated.results == [good_note(number) for number in range(5)]
    assert generated.failures == []
    assert generated.calls == len(server.calls) == 5 + 6


def test_a_server_that_is_silent_for_a_while_loses_no_request(server: ChatServer, tmp_path: Path) -> None:
    server.script = first(3, trickle)
    started = time.monotonic()
    generated = generate(notes(3), server.endpoint(timeout=0.3), tmp_path)
    assert generated.results == [good_note(number) for number in range(3)]
    assert generated.calls == len(server.calls) == 6
    assert time.monotonic() - started < 8  # a trickle takes 10 s


@pytest.mark.parametrize("code", [429, 503])
def test_slowing_down_costs_no_attempt(server: ChatServer, tmp_path: Path, code: int) -> None:
    server.script = first(15, status(code, retry_after="0"))
    generated = generate(notes(2), server.endpoint(attempts=1), tmp_path)
    assert generated.results == [good_note(0), good_note(1)]


def test_after_retry_after_all_workers_wait(server: ChatServer, tmp_path: Path) -> None:
    """Three other calls are under way when the 429 comes, and end during the wait."""
    told = []

    def slow_down(handler: BaseHTTPRequestHandler, call: Call) -> None:
        told.append(time.monotonic())
        status(429, retry_after="1")(handler, call)

    def late(handler: BaseHTTPRequestHandler, call: Call) -> None:
        time.sleep(0.5)
        answer_well(handler, call)

    server.script = lambda number, call: slow_down if number == 0 else late
    generate(notes(12), server.endpoint(concurrency=4), tmp_path)
    since = [call.time - told[0] for call in server.calls]
    assert [time for time in since if 0.4 < time < 1] == []
    assert len([time for time in since if time >= 1]) >= 9


def test_a_server_that_only_asks_to_slow_down_ends_the_run(server: ChatServer, tmp_path: Path) -> None:
    server.script = always(status(429, "daily limit", retry_after="7200"))
    with pytest.raises(EndpointError, match=r"slow down \(HTTP 429: daily limit; next in 7200 s\)"):
        generate(notes(8), server.endpoint(), tmp_path)
    assert len(server.calls) <= 4


def test_identical_requests_are_one_call(server: ChatServer, tmp_path: Path) -> None:
    generated = generate(notes(2) + notes(3) + notes(1), server.endpoint(), tmp_path)
    assert generated.results == [good_note(number) for number in (0, 1, 0, 1, 2, 0)]
    assert generated.calls == len(server.calls) == 3
    assert generated.from_cache == 0


def test_a_second_run_makes_no_call_and_needs_no_server(tmp_path: Path) -> None:
    with ChatServer() as server:
        before = generate(notes(4), server.endpoint(), tmp_path)
    again = generate(notes(4) + notes(1), server.endpoint(), tmp_path)
    assert again.results == [*before.results, good_note(0)]
    assert (again.calls, again.from_cache, again.usage) == (0, 5, Usage())


def test_another_server_with_the_same_model_makes_no_call(server: ChatServer, tmp_path: Path) -> None:
    generate(notes(2), server.endpoint(), tmp_path)
    elsewhere = server.endpoint(base_url="http://localhost:1/v1", concurrency=1, attempts=1, timeout=1)
    assert generate(notes(2), elsewhere, tmp_path).from_cache == 2


@pytest.mark.parametrize(
    ("behaviour", "hint"),
    [
        (status(401, "Incorrect API key"), "is the key in OPENAI_API_KEY right?"),
        (status(402, "no credit"), "is there credit left for the key in OPENAI_API_KEY?"),
        (status(403, "forbidden"), "may the key in OPENAI_API_KEY use this model?"),
        (status(404, "The model `tiny` does not exist."), "the model right?"),
        (status(405, "not allowed"), "is the base URL right?"),
        (status(429, "quota", "insufficient_quota"), "is there credit left"),
    ],
)
def test_what_no_call_can_pass_ends_the_run_at_once(
    server: ChatServer, tmp_path: Path, behaviour: Behaviour, hint: str
) -> None:
    server.script = always(behaviour)
    with pytest.raises(EndpointError) as stopped:
        generate(notes(50), server.endpoint(), tmp_path)
    message = str(stopped.value)
    assert hint in message
    assert server.url in message
    assert "model tiny" in message
    assert "\n" not in message
    assert len(server.calls) <= 4  # those that were under way


def test_answers_before_the_end_of_the_run_are_kept(server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda number, call: answer_well if number < 5 else status(401)
    with pytest.raises(EndpointError):
        generate(notes(9), server.endpoint(concurrency=1), tmp_path)
    server.script = always(answer_well)
    assert generate(notes(9), server.endpoint(), tmp_path).from_cache == 5


def test_a_server_that_was_never_there_ends_the_run(tmp_path: Path) -> None:
    with ChatServer() as server:
        endpoint = server.endpoint(attempts=3)
    with pytest.raises(EndpointError, match=f"{endpoint.base_url}: no connection .*, 3 times"):
        generate(notes(5), endpoint, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_goes_away_leaves_failures(server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda number, call: answer_well if number < 2 else hang_up
    generated = generate(notes(4), server.endpoint(concurrency=1, attempts=2), tmp_path)
    assert generated.results == [good_note(0), good_note(1), None, None]
    assert [failure.request for failure in generated.failures] == [2, 3]
    assert all("no connection" in failure.reason for failure in generated.failures)


def test_a_server_that_has_only_given_errors_was_there(server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda number, call: status(500) if number < 1 else hang_up
    generated = generate(notes(1), server.endpoint(attempts=2), tmp_path)
    assert "no connection" in generated.failures[0].reason


def test_a_request_that_always_fails_is_listed_and_the_others_go_on(
    server: ChatServer, tmp_path: Path
) -> None:
    server.script = for_prompt("Write down 1.", status(500, "broken"))
    generated = generate(notes(4) + notes(2), server.endpoint(attempts=3), tmp_path)
    assert generated.results == [good_note(0), None, good_note(2), good_note(3), good_note(0), None]
    assert generated.failures == [
        Failure(number, "note", "number: 1", "HTTP 500: broken", attempts=3) for number in (1, 5)
    ]
    assert generated.calls == len(server.calls) == 3 + 3


def test_a_request_that_the_server_refuses_is_not_asked_again(server: ChatServer, tmp_path: Path) -> None:
    server.script = for_prompt("Write down 0.", status(400, "too\nlong"))
    generated = generate(notes(2), server.endpoint(), tmp_path)
    assert generated.failures == [Failure(0, "note", "number: 0", "HTTP 400: too long", attempts=1)]
    assert len(server.calls) == 2


def test_long_inputs_are_shortened_in_a_failure(server: ChatServer, tmp_path: Path) -> None:
    server.script = always(status(400))
    request = replace(notes(1)[0], inputs={"number": "line\n" * 50})
    (failure,) = generate([request], server.endpoint(), tmp_path).failures
    assert failure.inputs == "number: " + "line " * 12 + "..."


def wrong_unless_good(inputs: Any, answer: dict[str, str]) -> str | None:
    return None if answer["note"] == "good" else f"{answer['note']} is not good"


PICKY = replace(NOTE, name="picky", problem=wrong_unless_good)
BAD, GOOD = '{"note": "bad"}', '{"note": "good"}'


def test_an_answer_of_no_use_is_drawn_again_with_the_next_seed(server: ChatServer, tmp_path: Path) -> None:
    server.script = by_seed({5: BAD, 6: '{"note"', 7: BAD, 8: GOOD})
    generated = generate(notes(1, PICKY), server.endpoint(seed=5), tmp_path)
    assert generated.results == [{"note": "good"}]
    assert [call.body["seed"] for call in server.calls] == [5, 6, 7, 8]


def test_a_fault_does_not_change_the_seed(server: ChatServer, tmp_path: Path) -> None:
    server.script = first(3, status(500))
    generate(notes(1), server.endpoint(seed=5), tmp_path)
    assert [call.body["seed"] for call in server.calls] == [5, 5, 5, 5]


def test_an_answer_of_no_use_is_not_asked_for_again(server: ChatServer, tmp_path: Path) -> None:
    server.script = by_seed({0: BAD, 1: BAD, 2: BAD, 3: GOOD})
    one = generate(notes(1, PICKY), server.endpoint(attempts=3), tmp_path)
    assert one.failures == [Failure(0, "picky", "number: 0", "bad is not good", attempts=3)]
    again = generate(notes(1, PICKY), server.endpoint(attempts=3), tmp_path)
    assert again.failures == one.failures
    assert again.calls == 0
    more = generate(notes(1, PICKY), server.endpoint(attempts=4), tmp_path)
    assert more.results == [{"note": "good"}]
    assert [call.body["seed"] for call in server.calls] == [0, 1, 2, 3]


def test_nobody_waits_where_waiting_is_of_no_use(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last attempt, and after an answer of no use: the server is in order."""
    monkeypatch.setattr(pace, "FIRST_WAIT", 20.0)
    started = time.monotonic()
    server.script = always(status(500))
    assert len(generate(notes(1), server.endpoint(attempts=1), tmp_path).failures) == 1
    server.script = by_seed({0: BAD, 1: BAD, 2: GOOD})
    assert generate(notes(1, PICKY), server.endpoint(), tmp_path).failures == []
    assert time.monotonic() - started < 8


def test_an_answer_that_is_not_json_is_asked_for_again(server: ChatServer, tmp_path: Path) -> None:
    server.script = always(say("nonsense"))
    generated = generate(notes(1), server.endpoint(attempts=2), tmp_path)
    assert generated.failures[0].reason == "the answer is not JSON (finish reason 'stop')"
    server.script = always(answer_well)
    assert generate(notes(1), server.endpoint(attempts=2), tmp_path).results == [good_note(0)]


def test_an_answer_after_one_that_was_not_json_is_found_again(server: ChatServer, tmp_path: Path) -> None:
    server.script = by_seed({0: "nonsense", 1: GOOD})
    before = generate(notes(1), server.endpoint(), tmp_path)
    again = generate(notes(1), server.endpoint(), tmp_path)
    assert again.results == before.results
    assert again.calls == 0


@pytest.mark.parametrize("spoilt", [{"note": 3}, {}, {"note": "bad"}])
def test_a_kept_answer_that_fails_the_checks_is_asked_for_again(
    server: ChatServer, tmp_path: Path, spoilt: dict[str, Any]
) -> None:
    server.script = always(say(GOOD))
    generate(notes(1, PICKY), server.endpoint(), tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"answer": spoilt}))
    assert generate(notes(1, PICKY), server.endpoint(), tmp_path).results == [{"note": "good"}]
    assert generate(notes(1, PICKY), server.endpoint(), tmp_path).calls == 0
    assert len(server.calls) == 2


def test_a_dry_run_makes_no_call_and_writes_nothing(server: ChatServer, tmp_path: Path) -> None:
    str(estimate(notes(5), server.endpoint(), tmp_path / "cache"))
    assert server.calls == []
    assert list(tmp_path.iterdir()) == []


def test_the_key_is_shown_nowhere(
    server: ChatServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
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


def test_a_server_without_keys_needs_none(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(notes(1), server.endpoint(api_key_env="UNSET_VARIABLE"), tmp_path / "1")
    monkeypatch.delenv("OPENAI_API_KEY")
    generate(notes(1), server.endpoint(), tmp_path / "2")
    assert [call.authorization for call in server.calls] == ["Bearer none"] * 2


def test_a_key_with_a_line_break_in_it_is_not_shown(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\nmore")
    with pytest.raises(ValueError, match="OPENAI_API_KEY holds characters that no key has") as refused:
        generate(notes(1), server.endpoint(), tmp_path)
    assert KEY not in "".join(traceback.format_exception(refused.value))


def test_waits_grow_between_the_attempts_of_a_request(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "FIRST_WAIT", 0.1)
    server.script = first(3, status(500))
    generate(notes(1), server.endpoint(), tmp_path)
    times = [call.time for call in server.calls]
    gaps = [late - early for early, late in pairwise(times)]
    assert [gap >= least for gap, least in zip(gaps, (0.05, 0.1, 0.2), strict=True)] == [True] * 3
