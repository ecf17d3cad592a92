"""Asks for a list of requests; what was answered once is not asked again.

Answers are kept in a folder of JSON-lines files: each process appends to one of its own, and reads all of
them when it starts. So no process can spoil another's file, on a network file system either, and a kill can
only tear the last line of a file to which nobody appends any more. A line that is not a whole record counts
for nothing. A line is handed to the operating system before the next call is waited for: a killed process
loses none, a power cut at most the last seconds.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from data_prep.generate.endpoint import (
    AttemptError,
    BusyError,
    Client,
    Endpoint,
    EndpointError,
    Reply,
    UnfitError,
    UnreachableError,
    Usage,
    body,
    cache_key,
    check_answer,
    read_answer,
)
from data_prep.generate.tasks import Answer, Request
from recipe.rerule.io import KEPT_SUFFIX, kept_line, kept_records
from recipe.rerule.process import Progress

MOST_USELESS = 8
"""Requests that may fail before any is answered; then the rest is not asked: it would be for nothing."""
BYTES_A_TOKEN = 4
"""UTF-8 bytes of a token, roughly: of English text and of most others."""
FIRST_WAIT = 1.0
"""Seconds of the first wait, at most; each further one is twice as long."""
LONGEST_WAIT = 60.0
PATIENCE = 600.0
"""How many seconds a server may only ask to slow down before the run stops."""


@dataclass(frozen=True)
class Failure:
    """A request without an answer.

    Attributes:
        request: its place in the list, from 0.
        task: the name of its task.
        inputs: its inputs, shortened, in one line.
        reason: of the last attempt.
        attempts: how many were made, those of earlier runs with an answer of no use included.
    """

    request: int
    task: str
    inputs: str
    reason: str
    attempts: int


@dataclass(frozen=True)
class Generated:
    """What became of the requests.

    Attributes:
        results: an answer for every request, in their order; None where it failed.
        failures: one for every None, in the same order.
        calls: how many calls this run made, repeated ones included.
        from_cache: how many of the requests were answered before this run.
        usage: the tokens of this run's calls.
    """

    results: list[Answer | None]
    failures: list[Failure]
    calls: int
    from_cache: int
    usage: Usage


def generate(requests: Sequence[Request], endpoint: Endpoint, cache_folder: Path) -> Generated:
    """Asks the endpoint for whatever `cache_folder` does not hold, many calls at a time.

    Every answer goes to the folder at once, so a run that was killed goes on where it was when it is started
    again. A request fails after `endpoint.attempts` calls; that does not stop the others, unless none of the
    first MOST_USELESS is answered: the others then fail for the same reason, without a call.

    Raises:
        EndpointError: a wrong key, model or address, a server that cannot be reached or lets nobody in, or
            no answer within `endpoint.patience`.
        OSError: the folder cannot be read or written.
    """
    with Cache(cache_folder) as cache:
        keys, known, pending = _sorted_out(requests, endpoint, cache)
        run = _Run(endpoint, cache, len(pending))
        if pending:
            with run.progress:
                asyncio.run(run.ask_all(pending))
    failures = []
    for number, (key, request) in enumerate(zip(keys, requests, strict=True)):
        if key in run.misses:
            failures.append(Failure(number, request.task.name, request.summary(), *run.misses[key]))
    answers = known | run.answers
    from_cache = sum(key in known for key in keys)
    return Generated([answers.get(key) for key in keys], failures, run.calls, from_cache, run.usage)


def _sorted_out(
    requests: Sequence[Request], endpoint: Endpoint, cache: Cache | None
) -> tuple[list[str], dict[str, Answer], dict[str, Request]]:
    """The key of every request, the answers that are known, and what has to be asked, both by key.

    Identical requests share a key. A kept answer has to pass the checks of today: its file may have been
    edited, or a check changed.
    """
    keys = [cache_key(request, endpoint) for request in requests]
    known: dict[str, Answer] = {}
    pending: dict[str, Request] = {}
    for key, request in zip(keys, requests, strict=True):
        if key in known or key in pending:
            continue
        answer = None if cache is None else cache.answer(key)
        try:
            if answer is not None:
                check_answer(request, answer)
                known[key] = answer
                continue
        except AttemptError:
            pass
        pending[key] = request
    return keys, known, pending


# ---- what it will cost ----


@dataclass(frozen=True)
class Estimate:
    """Calls, tokens and cost of a run in which every first answer can be used; `str` explains them.

    Attributes:
        requests: how many are asked for.
        calls: how many of them are neither repetitions nor known from the cache.
        prompt_tokens: of these calls, from the length of prompt and schema.
        completion_tokens: of these calls, from the usual length of each task's answers.
        cost: in the currency of the prices; None where they are unknown.
    """

    requests: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None

    def __str__(self) -> str:
        cost = "price unknown" if self.cost is None else f"{self.cost:.4f} in the currency of the prices"
        return (
            f"{self.requests} requests, {self.calls} calls to make (the others repeat one or are known)\n"
            f"prompt tokens: about {self.prompt_tokens} "
            f"({BYTES_A_TOKEN} bytes of prompt and schema counted as one)\n"
            f"completion tokens: about {self.completion_tokens} (the usual length of each task's answers)\n"
            f"cost: {cost}; calls that have to be repeated come on top"
        )


def estimate(requests: Sequence[Request], endpoint: Endpoint, cache_folder: Path | None = None) -> Estimate:
    """What `generate` with the same arguments will take. Makes no call and writes nothing."""
    _, _, asked = _sorted_out(requests, endpoint, Cache(cache_folder) if cache_folder is not None else None)
    texts = [request.messages()[0]["content"] + json.dumps(request.schema()) for request in asked.values()]
    prompt_tokens = sum(math.ceil(len(text.encode()) / BYTES_A_TOKEN) for text in texts)
    completion_tokens = sum(request.task.answer_tokens(request.inputs) for request in asked.values())
    cost = endpoint.cost(prompt_tokens, completion_tokens)
    return Estimate(len(requests), len(asked), prompt_tokens, completion_tokens, cost)


# ---- answers on disk ----


class Cache:
    """Answers by key, and what was wrong with answers of no use. Nothing is written before the first `put_*`.

    A context manager: leaving it closes the file. Raises OSError where the folder cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._answers: dict[str, Answer] = {}
        self._unfit: dict[str, dict[int, str]] = {}
        self._file: BinaryIO | None = None
        for path in sorted(folder.glob(f"*{KEPT_SUFFIX}")):  # the oldest first: a later answer replaces it
            for record in kept_records(path.read_bytes()):
                self._remember(record)

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def answer(self, key: str) -> Answer | None:
        """The answer kept under `key`."""
        return self._answers.get(key)

    def unfit(self, key: str) -> dict[int, str]:
        """What is wrong with the draws of `key` that were of no use."""
        return self._unfit.get(key, {})

    def put_answer(self, key: str, answer: Answer) -> None:
        """Keeps a checked answer."""
        self._put({"key": key, "answer": answer})

    def put_unfit(self, key: str, draw: int, problem: str) -> None:
        """Keeps that this draw was of no use."""
        self._put({"key": key, "draw": draw, "unfit": problem})

    def _put(self, record: dict[str, Any]) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"{time.time_ns():020d}-{uuid.uuid4().hex}{KEPT_SUFFIX}"
            self._file = open(self._folder / name, "xb")  # noqa: SIM115 (closed by __exit__)
        self._file.write(kept_line(record))
        self._file.flush()
        self._remember(record)

    def _remember(self, record: dict[str, Any]) -> None:
        match record:
            case {"key": str(key), "answer": dict(answer)}:
                self._answers[key] = answer
            case {"key": str(key), "draw": int(draw), "unfit": str(problem)}:
                self._unfit.setdefault(key, {})[draw] = problem


# ---- how fast to ask ----


def backoff(failures: int) -> float:
    """Seconds to wait after the `failures`-th failure in a row (from 1), partly random: not all at once."""
    return random.uniform(0.5, 1.0) * min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(failures - 1, 30))


class Pace:
    """Turns for all workers of a run.

    After a "slow down" nobody gets a turn until the wait is over, and then only half as many at a time as
    before; each answer that comes widens it again (additive increase, multiplicative decrease, as in TCP).
    """

    def __init__(self, concurrency: int) -> None:
        self._most = concurrency
        self._width = float(concurrency)
        self._running = 0
        self._waits = 0
        self._open_at = 0.0
        self._busy_since: float | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits until a call may be made, and counts it as under way inside the block."""
        while (wait := self._open_at - time.monotonic()) > 0 or self._running >= int(self._width):
            await asyncio.sleep(max(wait, 0.05))
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def answered(self) -> None:
        """An answer came."""
        self._waits = 0
        self._width = min(self._most, self._width + 1 / self._width)
        self._busy_since = None

    def slow_down(self, busy: BusyError) -> None:
        """Holds everybody back. Raises EndpointError where that would go on for too long."""
        now = time.monotonic()
        self._busy_since = self._busy_since or now
        if now >= self._open_at:  # not one of those that were under way when the first was told
            self._waits += 1
            self._width = max(1.0, self._width / 2)
        wait = backoff(self._waits) if busy.retry_after is None else busy.retry_after
        self._open_at = max(self._open_at, now + wait)
        if self._open_at - self._busy_since > PATIENCE:
            raise EndpointError(
                f"the server only asks to slow down ({busy}; next in {self._open_at - now:.0f} s): "
                "run the same command later, what is finished is kept"
            )


# ---- asking ----


class _UselessError(Exception):
    """Asking on would be useless."""


@dataclass
class _Run:
    """The calls of one run and what came of them, by cache key; a miss is (reason, attempts)."""

    endpoint: Endpoint
    cache: Cache
    total: int
    answers: dict[str, Answer] = field(default_factory=dict)
    misses: dict[str, tuple[str, int]] = field(default_factory=dict)
    calls: int = 0
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        self.progress = Progress("generate", self.total, "requests")
        self._pace = Pace(self.endpoint.concurrency)
        self._patience = max(self.endpoint.patience, self.endpoint.timeout)
        self._useless = 0
        self._trouble = "none was made"

    async def ask_all(self, pending: dict[str, Request]) -> None:
        """Settles every request: each gets an answer or a miss."""
        self._client = Client(self.endpoint)
        queue = iter(pending.items())
        try:
            async with asyncio.timeout(self._patience) as self._silence, asyncio.TaskGroup() as workers:
                for _ in range(min(self.endpoint.concurrency, len(pending))):
                    workers.create_task(self._work(queue))
        except TimeoutError:
            raise EndpointError(
                f"{self.endpoint.name}: no answer for {self._patience:g} s (--patience); the latest call: "
                f"{self._trouble}; what is finished is kept, and the same command goes on from there"
            ) from None
        except BaseExceptionGroup as errors:
            if not isinstance(errors.exceptions[0], _UselessError):
                raise errors.exceptions[0] from None
            for key in pending.keys() - self.answers.keys() - self.misses.keys():
                self.misses[key] = (str(errors.exceptions[0]), 0)
        finally:
            await self._client.close()

    async def _work(self, queue: Iterator[tuple[str, Request]]) -> None:
        for key, request in queue:
            await self._settle(key, request)
            self.progress.advance()

    async def _settle(self, key: str, request: Request) -> None:
        """An answer or a miss. Raises EndpointError, or _UselessError where asking on is useless."""
        draw, attempts = 0, self.endpoint.attempts
        for attempt in range(1, attempts + 1):
            try:
                self.answers[key] = await self._draw(key, request, draw)
                return
            except AttemptError as missed:
                last = missed
            self._trouble = str(last)
            self.progress.doing(f"{len(self.misses)} failed; the latest trouble: {last}")
            draw += last.redraw
            if last.final or attempt == attempts:
                break
            if last.pause:
                await asyncio.sleep(backoff(attempt))
        if isinstance(last, UnreachableError) and not self._client.reached:
            count = "once" if attempt == 1 else f"{attempt} times"
            raise EndpointError(
                f"{self.endpoint.base_url}: {last}, {count}; is it the right base URL, of a running server?"
            )
        self.misses[key] = (str(last), attempt)
        self._useless += not isinstance(last, UnfitError)  # there the endpoint does answer
        if self._useless >= MOST_USELESS and not self.answers:
            raise _UselessError(f"not asked, since none of the first {self._useless} was answered: {last}")

    async def _draw(self, key: str, request: Request, draw: int) -> Answer:
        """The answer of one draw, kept as soon as it is there. Raises AttemptError."""
        if draw in self.cache.unfit(key):
            raise UnfitError(self.cache.unfit(key)[draw])
        reply = await self._ask(request, draw)
        try:
            answer = read_answer(request, reply)
        except UnfitError as error:
            self.cache.put_unfit(key, draw, str(error))
            raise
        self.cache.put_answer(key, answer)
        return answer

    async def _ask(self, request: Request, draw: int) -> Reply:
        """The reply to one call, made as often as the server asks to come later."""
        while True:
            async with self._pace.turn():
                self.calls += 1
                try:
                    reply = await self._client.ask(body(request, self.endpoint, draw))
                except BusyError as busy:
                    self._trouble = str(busy)
                    self._pace.slow_down(busy)
                    continue
            self._pace.answered()
            self._silence.reschedule(asyncio.get_running_loop().time() + self._patience)
            self.usage += reply.usage
            return reply
