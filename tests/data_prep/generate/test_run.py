"""Answers are kept, the pace is the server's, and no call is made twice."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from data_prep.generate import (
    REFUSALS,
    Endpoint,
    EndpointError,
    Estimate,
    Failure,
    Request,
    Usage,
    estimate,
    generate,
    run,
)
from data_prep.generate.endpoint import BusyError, cache_key, retry_after
from data_prep.generate.run import Cache, Pace, backoff
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

KEYS = st.sampled_from(["a", "b", "c", "d"])
TEXTS = st.text(max_size=20)


def put(folder: Path, *answers: tuple[str, dict[str, Any]]) -> None:
    with Cache(folder) as cache:
        for key, answer in answers:
            cache.put_answer(key, answer)


def test_what_was_put_is_there_at_once_and_in_the_next_process(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.put_answer("a", {"text": "Zoë\n\u2028"})
        cache.put_unfit("b", 2, "no blank")
        for reader in (cache, Cache(tmp_path)):
            assert reader.answer("a") == {"text": "Zoë\n\u2028"}
            assert reader.answer("b") is None
            assert reader.unfit("b") == {2: "no blank"}
            assert reader.unfit("a") == {}


def test_nothing_is_written_before_the_first_answer(tmp_path: Path) -> None:
    with Cache(tmp_path / "deep" / "cache"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_every_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    with Cache(tmp_path) as one, Cache(tmp_path) as other:
        for number in range(50):
            one.put_answer(f"one {number}", {"n": number})
            other.put_answer(f"other {number}", {"n": -number})
    assert len(list(tmp_path.iterdir())) == 2
    both = Cache(tmp_path)
    assert all(both.answer(f"one {number}") == {"n": number} for number in range(50))
    assert all(both.answer(f"other {number}") == {"n": -number} for number in range(50))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe",
        b"\0" * 40,
        b"null",
        b"3",
        b'"a"',
        b"[" * 100_000,
        b"{}",
        b'{"key": "x"}',
        b'{"key": 1, "answer": {}}',
        b'{"key": "x", "answer": "text"}',
        b'{"key": "x", "answer": null}',
        b'{"key": "x", "draw": "1", "unfit": "no"}',
        b'{"key": "x", "unfit": "no"}',
        b'{"key": "x", "answer": {"text": "half',
    ],
    ids=lambda line: line[:40].decode("latin-1"),
)
def test_a_line_that_is_no_record_counts_for_nothing(tmp_path: Path, line: bytes) -> None:
    put(tmp_path, ("a", {"n": 1}), ("b", {"n": 2}))
    (file,) = tmp_path.iterdir()
    before, after = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(before + line + b"\n" + after + line)
    cache = Cache(tmp_path)
    assert (cache.answer("a"), cache.answer("b")) == ({"n": 1}, {"n": 2})
    assert (cache.answer("x"), cache.unfit("x")) == (None, {})


@given(answers=st.lists(st.tuples(KEYS, TEXTS), min_size=1, max_size=6), data=st.data())
def test_a_torn_file_gives_the_whole_records_before_the_tear(
    answers: list[tuple[str, str]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        put(folder, *((key, {"text": text}) for key, text in answers))
        (file,) = folder.iterdir()
        content = file.read_bytes()
        length = data.draw(st.integers(0, len(content)))
        file.write_bytes(content[:length])
        ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
        # a record whose line break alone is missing is whole
        expected = {key: text for (key, text), end in zip(answers, ends, strict=True) if end - 1 <= length}
        cache = Cache(folder)
        found = {key: cache.answer(key) for key in "abcd"}
        assert found == {key: {"text": expected[key]} if key in expected else None for key in "abcd"}


class Processes(RuleBasedStateMachine):
    """Two processes on one folder, either of which is killed now and then, which may tear its last line."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name) / "cache"
        self.caches = [Cache(self.folder), Cache(self.folder)]
        self.written: dict[str, set[str]] = {key: set() for key in "abcd"}
        self.safe: dict[str, int] = {}  # lines of each file

    @rule(who=st.integers(0, 1), key=KEYS, text=TEXTS)
    def put(self, who: int, key: str, text: str) -> None:
        self.caches[who].put_answer(key, {"text": text})
        self.written[key].add(text)
        assert self.caches[who].answer(key) == {"text": text}

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
        cache = Cache(self.folder)
        for key, texts in self.written.items():
            answer = cache.answer(key)
            assert answer is None or answer["text"] in texts
        lines = [line for path in self.folder.glob("*") for line in path.read_bytes().split(b"\n")[:-1]]
        for line in lines:
            assert cache.answer(json.loads(line)["key"]) is not None

    def teardown(self) -> None:
        for cache in self.caches:
            cache.__exit__(None, None, None)
        self.temporary.cleanup()


TestProcesses = Processes.TestCase
TestProcesses.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("0", 0.0), ("2.5", 2.5), ("120", 120.0), ("-3", 0.0)]
    + [(word, None) for word in ("nan", "inf", "soon", "")],
)
def test_retry_after_in_seconds(value: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": value}) == seconds


def test_retry_after_as_a_date() -> None:
    asked = retry_after({"retry-after": formatdate(time.time() + 90, usegmt=True)})
    assert asked is not None
    assert 88 < asked < 91  # a date has whole seconds
    assert retry_after({"retry-after": formatdate(time.time() - 90, usegmt=True)}) == 0.0


def test_waits_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FIRST_WAIT", 1.0)
    for failures, most in [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (50, 60)]:
        waits = [backoff(failures) for _ in range(200)]
        assert most / 2 <= min(waits) <= max(waits) <= most
        assert max(waits) - min(waits) > most / 4  # not all the same


async def at_once(turns: Pace, workers: int) -> int:
    """How many of so many workers have their turn at a time."""
    running, most = 0, 0

    async def work() -> None:
        nonlocal running, most
        async with turns.turn():
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1

    await asyncio.gather(*(work() for _ in range(workers)))
    return most


def widths(events: str, concurrency: int) -> list[int]:
    """How many have their turn at a time after each event: b(usy) or a(nswered)."""

    async def go() -> list[int]:
        turns, found = Pace(concurrency), []
        for event in events:
            turns.slow_down(BusyError("429", 0.0)) if event == "b" else turns.answered()
            found.append(await at_once(turns, 2 * concurrency))
        return found

    return asyncio.run(go())


def test_half_as_many_after_each_slow_down_and_never_none() -> None:
    assert widths("bbbbb", 8) == [4, 2, 1, 1, 1]


def test_one_more_after_a_round_of_answers_and_never_too_many() -> None:
    """By hand: 2, +1/2 = 2.5, +1/2.5 = 2.9, +1/2.9 = 3.24, +.31 = 3.55, +.28 = 3.84, +.26 = 4.1, then 4."""
    assert widths("baaaaaaaa", 4) == [2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert widths("aaaaa", 1) == [1] * 5


def test_those_that_were_under_way_do_not_narrow_it_again() -> None:
    async def go() -> int:
        turns = Pace(8)
        for _ in range(8):
            turns.slow_down(BusyError("429", 0.05))
        return await at_once(turns, 8)

    assert asyncio.run(go()) == 4


def test_the_longest_wait_asked_for_counts() -> None:
    async def go() -> float:
        turns, started = Pace(2), time.monotonic()
        turns.slow_down(BusyError("429", 0.2))
        turns.slow_down(BusyError("429", 0.0))
        async with turns.turn():
            return time.monotonic() - started

    assert asyncio.run(go()) >= 0.2


def test_without_a_wait_asked_for_it_grows_until_an_answer_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "backoff", lambda failures: 0.05 * failures)

    async def waited(turns: Pace) -> float:
        started = time.monotonic()
        turns.slow_down(BusyError("429", None))
        async with turns.turn():
            return time.monotonic() - started

    async def go() -> list[float]:
        turns = Pace(2)
        waits = [await waited(turns) for _ in range(4)]
        turns.answered()
        return [*waits, await waited(turns)]

    waits = asyncio.run(go())
    assert [wait >= 0.05 * n for wait, n in zip(waits, (1, 2, 3, 4, 1), strict=True)] == [True] * 5
    assert waits[4] < 0.25


def test_patience_ends_when_nothing_else_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PATIENCE", 0.1)
    turns = Pace(2)
    turns.slow_down(BusyError("429", 0.05))
    time.sleep(0.06)
    turns.answered()
    turns.slow_down(BusyError("429", 0.09))
    time.sleep(0.09)
    with pytest.raises(EndpointError, match="only asks to slow down"):
        turns.slow_down(BusyError("429", 0.05))


def test_a_failing_worker_gives_its_turn_back() -> None:
    async def go() -> int:
        turns = Pace(1)
        for _ in range(3):
            with pytest.raises(RuntimeError):
                async with turns.turn():
                    raise RuntimeError
        return await at_once(turns, 1)

    assert asyncio.run(asyncio.wait_for(go(), 5)) == 1


ENDPOINT = Endpoint("http://localhost:8000/v1", "tiny", price_in=2.0, price_out=10.0)
SCHEMA_BYTES = len(json.dumps(NOTE.schema({})))


def test_tokens_and_cost_of_the_calls_to_make() -> None:
    """Three different prompts of 13 characters; NOTE says 8 tokens an answer."""
    prompt_tokens = 3 * -(-(13 + SCHEMA_BYTES) // 4)
    found = estimate(notes(3) + notes(2), ENDPOINT)
    assert found == Estimate(
        requests=5,
        calls=3,
        prompt_tokens=prompt_tokens,
        completion_tokens=24,
        cost=(prompt_tokens * 2 + 24 * 10) / 1e6,
    )


def test_what_is_kept_costs_nothing(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.put_answer(cache_key(notes(1)[0], ENDPOINT), {"note": "x"})
    assert estimate(notes(3), ENDPOINT, tmp_path).calls == 2
    assert estimate(notes(1), ENDPOINT, tmp_path).cost == 0


def test_more_refusals_are_a_longer_answer() -> None:
    few, many = (Request(REFUSALS, {"name": "A", "count": count}) for count in (5, 50))
    assert estimate([many], ENDPOINT).completion_tokens > 5 * estimate([few], ENDPOINT).completion_tokens


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
    monkeypatch.setattr(run, "FIRST_WAIT", 20.0)
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
    monkeypatch.setattr(run, "FIRST_WAIT", 0.1)
    server.script = first(3, status(500))
    generate(notes(1), server.endpoint(), tmp_path)
    times = [call.time for call in server.calls]
    gaps = [late - early for early, late in pairwise(times)]
    assert [gap >= least for gap, least in zip(gaps, (0.05, 0.1, 0.2), strict=True)] == [True] * 3
