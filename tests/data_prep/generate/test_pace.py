from __future__ import annotations

import asyncio
import time
from email.utils import formatdate

import pytest

from data_prep.generate import EndpointError, pace
from data_prep.generate.errors import BusyError
from data_prep.generate.pace import Pace, backoff, retry_after


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


def test_no_retry_after() -> None:
    assert retry_after({}) is None


def test_waits_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "FIRST_WAIT", 1.0)
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

    async def run() -> list[int]:
        turns, found = Pace(concurrency), []
        for event in events:
            turns.slow_down(BusyError("429", 0.0)) if event == "b" else turns.answered()
            found.append(await at_once(turns, 2 * concurrency))
        return found

    return asyncio.run(run())


def test_half_as_many_after_each_slow_down_and_never_none() -> None:
    assert widths("bbbbb", 8) == [4, 2, 1, 1, 1]


def test_one_more_after_a_round_of_answers_and_never_too_many() -> None:
    """By hand: 2, +1/2 = 2.5, +1/2.5 = 2.9, +1/2.9 = 3.24, +.31 = 3.55, +.28 = 3.84, +.26 = 4.1, then 4."""
    assert widths("baaaaaaaa", 4) == [2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert widths("aaaaa", 1) == [1] * 5


def test_those_that_were_under_way_do_not_narrow_it_again() -> None:
    async def run() -> int:
        turns = Pace(8)
        for _ in range(8):
            turns.slow_down(BusyError("429", 0.05))
        return await at_once(turns, 8)

    assert asyncio.run(run()) == 4


def test_the_longest_wait_asked_for_counts() -> None:
    async def run() -> float:
        turns, started = Pace(2), time.monotonic()
        turns.slow_down(BusyError("429", 0.2))
        turns.slow_down(BusyError("429", 0.0))
        async with turns.turn():
            return time.monotonic() - started

    assert asyncio.run(run()) >= 0.2


def test_without_a_wait_asked_for_it_grows_until_an_answer_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "backoff", lambda failures: 0.05 * failures)

    async def waited(turns: Pace) -> float:
        started = time.monotonic()
        turns.slow_down(BusyError("429", None))
        async with turns.turn():
            return time.monotonic() - started

    async def run() -> list[float]:
        turns = Pace(2)
        waits = [await waited(turns) for _ in range(4)]
        turns.answered()
        return [*waits, await waited(turns)]

    waits = asyncio.run(run())
    assert [wait >= 0.05 * n for wait, n in zip(waits, (1, 2, 3, 4, 1), strict=True)] == [True] * 5
    assert waits[4] < 0.25


def test_patience_ends_when_nothing_else_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "PATIENCE", 0.1)
    turns = Pace(2)
    turns.slow_down(BusyError("429", 0.05))
    time.sleep(0.06)
    turns.answered()
    turns.slow_down(BusyError("429", 0.09))
    time.sleep(0.09)
    with pytest.raises(EndpointError, match="only asks to slow down"):
        turns.slow_down(BusyError("429", 0.05))


def test_a_failing_worker_gives_its_turn_back() -> None:
    async def run() -> int:
        turns = Pace(1)
        for _ in range(3):
            with pytest.raises(RuntimeError):
                async with turns.turn():
                    raise RuntimeError
        return await at_once(turns, 1)

    assert asyncio.run(asyncio.wait_for(run(), 5)) == 1
