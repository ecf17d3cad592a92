"""Answers are kept, the server's troubles pass, and no call is made twice."""

from __future__ import annotations

import json
import logging
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from data_prep.generate import REFUSALS, Endpoint, EndpointError, Failure, Request, estimate, generate
from data_prep.generate.endpoint import Usage, cache_key
from data_prep.generate.run import Cache
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

# ---- the folder of answers ----

KEYS = st.sampled_from(["a", "b", "c", "d"])
TEXTS = st.text(max_size=20)


def test_nothing_is_written_before_the_first_answer_and_that_one_at_once(tmp_path: Path) -> None:
    with Cache(tmp_path / "deep" / "cache") as cache:
        assert list(tmp_path.iterdir()) == []
        cache.put("a", {"text": "Zoë\n\u2028"})
        assert cache.answers == Cache(tmp_path / "deep" / "cache").answers == {"a": {"text": "Zoë\n\u2028"}}


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"\xff\xfe", b"\0" * 40, b"null", b"3", b'"a"', b"[" * 100_000, b"{}", b'{"key": "x"}'),
        *(b'{"key": 1, "answer": {}}', b'{"key": "x", "answer": "text"}', b'{"key": "x", "answer": null}'),
        b'{"key": "x", "answer": {"text": "half',
    ],
    ids=lambda line: line[:40].decode("latin-1"),
)
def test_a_line_that_is_no_record_counts_for_nothing(tmp_path: Path, line: bytes) -> None:
    with Cache(tmp_path) as cache:
        cache.put("a", {"n": 1})
        cache.put("b", {"n": 2})
    (file,) = tmp_path.iterdir()
    before, after = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(before + line + b"\n" + after + line)
    assert Cache(tmp_path).answers == {"a": {"n": 1}, "b": {"n": 2}}


class Processes(RuleBasedStateMachine):
    """Two processes on one folder, either of which is killed now and then, which may tear its last line."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name) / "cache"
        self.caches = [Cache(self.folder), Cache(self.folder)]
        self.written: dict[str, set[str]] = {key: set() for key in "abcd"}

    @rule(who=st.integers(0, 1), key=KEYS, text=TEXTS)
    def put(self, who: int, key: str, text: str) -> None:
        self.caches[who].put(key, {"text": text})
        self.written[key].add(text)
        assert self.caches[who].answers[key] == {"text": text}

    @rule(who=st.integers(0, 1))
    def restart(self, who: int) -> None:
        self.caches[who].__exit__(None, None, None)
        self.caches[who] = Cache(self.folder)

    @precondition(lambda self: self.folder.exists())
    @rule(who=st.integers(0, 1), data=st.data())
    def kill(self, who: int, data: st.DataObject) -> None:
        """Cuts the last line of the file that the process has open, anywhere."""
        file = self.caches[who]._file
        if file is not None:
            path = Path(file.name)
            content = path.read_bytes()
            last = content.rstrip(b"\n").rfind(b"\n") + 1
            path.write_bytes(content[: data.draw(st.integers(last, len(content)))])
        self.restart(who)

    @invariant()
    def whatever_is_read_was_written_whole(self) -> None:
        """And every whole line of the files is read."""
        answers = Cache(self.folder).answers
        assert all(answer["text"] in self.written[key] for key, answer in answers.items())
        lines = [line for path in self.folder.glob("*") for line in path.read_bytes().split(b"\n")[:-1]]
        assert {json.loads(line)["key"] for line in lines} <= answers.keys()

    def teardown(self) -> None:
        for cache in self.caches:
            cache.__exit__(None, None, None)
        self.temporary.cleanup()


TestProcesses = Processes.TestCase
TestProcesses.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


# ---- what it will cost ----

PRICED = Endpoint("http://localhost:8000/v1", "tiny", price_in=2e5, price_out=1e6)


def test_tokens_and_cost_of_the_calls_to_make(tmp_path: Path) -> None:
    """Prompts of 13 characters; NOTE says 8 tokens an answer. What is kept costs nothing."""
    prompt_tokens = -(-(13 + len(json.dumps(NOTE.schema({})))) // 4)
    told = estimate(notes(3) + notes(2), PRICED)
    assert told.splitlines()[0] == "5 requests, 3 calls to make (the others repeat one or are known)"
    assert f"prompt tokens: about {3 * prompt_tokens} (4 bytes" in told
    assert "completion tokens: about 24 (" in told
    assert f"cost: {3 * prompt_tokens / 5 + 24:.4f} in the currency" in told
    with Cache(tmp_path / "cache") as cache:
        cache.put(cache_key(notes(1)[0], PRICED), {"note": "x"})
    assert estimate(notes(3), PRICED, tmp_path / "cache").startswith("3 requests, 2 calls to make")
    assert "price unknown" in estimate(notes(3), replace(PRICED, price_in=None, price_out=None))
    many = Request(REFUSALS, {"name": "A", "count": 50})
    assert "completion tokens: about 1010 (" in estimate([many], PRICED)


# ---- asking ----


def first(count: int, behaviour: Behaviour) -> Callable[[int, Call], Behaviour]:
    """A script that misbehaves for `count` calls."""
    return lambda number, call: behaviour if number < count else answer_well


def always(behaviour: Behaviour) -> Callable[[int, Call], Behaviour]:
    return lambda number, call: behaviour


def for_prompt(prompt: str, behaviour: Behaviour) -> Callable[[int, Call], Behaviour]:
    return lambda number, call: behaviour if call.prompt == prompt else answer_well


def test_every_request_is_answered_in_order_with_one_call_each(server: ChatServer, tmp_path: Path) -> None:
    generated = generate(notes(10) + notes(2), server.endpoint(), tmp_path)
    assert generated.results == [good_note(number) for number in (*range(10), 0, 1)]
    assert generated.failures == []
    assert Counter(server.prompts()) == {f"Write down {number}.": 1 for number in range(10)}
    assert (generated.calls, generated.from_cache) == (10, 0)
    assert generated.usage == Usage(prompt_tokens=70, completion_tokens=30)
    assert {call.authorization for call in server.calls} == {f"Bearer {KEY}"}
    assert {call.path for call in server.calls} == {"/v1/chat/completions"}
    again = generate(notes(10)[::-1], replace(server.endpoint(), base_url="http://127.0.0.1:1/v1"), tmp_path)
    assert again.results == generated.results[9::-1]
    assert (again.calls, again.from_cache, again.usage, len(server.calls)) == (0, 10, Usage(), 10)


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
    "503": status(503),
    "500": status(500),
    "text that is not JSON": say('{"note": "Write'),
    "text that breaks the schema": say('{"memo": "Write down"}'),
    "no text": say(None),
    "half a surrogate pair": say('{"note": "\\ud800"}'),
    "body that is not JSON": raw(b'{"choices": [{'),
    "empty body": raw(b""),
    "choices of another type": raw(b'{"choices": "well"}'),
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
    assert len(server.calls) == 5 + 6


def test_a_response_that_never_ends_fails(server: ChatServer, tmp_path: Path) -> None:
    server.script = for_prompt("Write down 0.", trickle)
    started = time.monotonic()
    generated = generate(notes(2), server.endpoint(timeout=1, attempts=1), tmp_path)
    assert generated.results == [None, good_note(1)]
    assert generated.failures[0].reason == "no answer within 1 s (--timeout)"
    assert time.monotonic() - started < 8  # a trickle takes 10 s


def test_what_no_call_can_pass_ends_the_run_and_keeps_what_came(server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda number, call: answer_well if number < 5 else status(401, "Incorrect API key")
    with pytest.raises(EndpointError, match="model tiny: HTTP 401: Incorrect API key; is the key in OPENAI"):
        generate(notes(50), server.endpoint(concurrency=1), tmp_path)
    assert len(server.calls) == 6
    server.script = always(answer_well)
    assert generate(notes(9), server.endpoint(), tmp_path).from_cache == 5


def test_a_server_that_was_never_there_ends_the_run(tmp_path: Path) -> None:
    with ChatServer() as server:
        endpoint = server.endpoint(attempts=3)
    with pytest.raises(
        EndpointError, match=rf"^{endpoint.base_url}: no connection .*is it the right base URL"
    ):
        generate(notes(5), endpoint, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_goes_away_leaves_failures(server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda number, call: answer_well if number < 2 else hang_up
    generated = generate(notes(4), server.endpoint(concurrency=1, attempts=2), tmp_path)
    assert generated.results == [good_note(0), good_note(1), None, None]
    assert [failure.request for failure in generated.failures] == [2, 3]
    assert all("no connection" in failure.reason for failure in generated.failures)


@pytest.mark.parametrize(("code", "calls"), [(500, 3), (400, 1)])
def test_a_request_that_always_fails_is_listed_and_the_others_go_on(
    server: ChatServer, tmp_path: Path, code: int, calls: int
) -> None:
    """What the server itself refuses is not asked again."""
    server.script = for_prompt("Write down 1.", status(code, "too\nlong"))
    generated = generate(notes(4) + notes(2), server.endpoint(attempts=3), tmp_path)
    assert generated.results == [good_note(0), None, good_note(2), good_note(3), good_note(0), None]
    reason = f"HTTP {code}: too long"
    assert generated.failures == [Failure(number, "note", "number: 1", reason) for number in (1, 5)]
    assert len(server.calls) == 3 + calls


def test_where_none_of_the_first_is_answered_the_others_are_not_asked(
    server: ChatServer, tmp_path: Path
) -> None:
    server.script = always(status(400, "seed is not permitted"))
    line = "line\n" * 50
    requests = [replace(one, inputs={"number": f"{n} {line}"}) for n, one in enumerate(notes(40))]
    failures = generate(requests, server.endpoint(), tmp_path).failures
    assert len(failures) == 40
    assert len(server.calls) < 8 + 4
    assert failures[0].inputs == "number: 0 " + "line " * 11 + "lin..."
    assert failures[-1].reason == (
        "not asked, since none of the first 8 was answered: HTTP 400: seed is not permitted"
    )


def wrong_unless_good(inputs: Any, answer: dict[str, str]) -> str | None:
    return None if answer["note"] == "good" else f"{answer['note']} is not good"


PICKY = replace(NOTE, name="picky", problem=wrong_unless_good)
BAD, GOOD = '{"note": "bad"}', '{"note": "good"}'


def test_an_answer_of_no_use_is_drawn_again_with_the_next_seed(server: ChatServer, tmp_path: Path) -> None:
    texts = {5: BAD, 6: '{"note"', 7: BAD, 8: GOOD}
    server.script = lambda number, call: say(texts[call.body["seed"]])
    few = generate(notes(1, PICKY), server.endpoint(seed=5, attempts=3), tmp_path)
    assert few.failures == [Failure(0, "picky", "number: 0", "bad is not good")]
    generated = generate(notes(1, PICKY), server.endpoint(seed=5), tmp_path)
    assert generated.results == [{"note": "good"}]
    assert [call.body["seed"] for call in server.calls] == [5, 6, 7, 5, 6, 7, 8]
    assert generate(notes(1, PICKY), server.endpoint(seed=5), tmp_path).calls == 0


def test_a_fault_does_not_change_the_seed(server: ChatServer, tmp_path: Path) -> None:
    server.script = first(3, status(500))
    generate(notes(1), server.endpoint(seed=5), tmp_path)
    assert [call.body["seed"] for call in server.calls] == [5, 5, 5, 5]


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


def test_a_server_without_keys_needs_none(server: ChatServer, tmp_path: Path) -> None:
    generate(notes(1), server.endpoint(api_key_env="UNSET_VARIABLE"), tmp_path)
    assert [call.authorization for call in server.calls] == ["Bearer none"]
