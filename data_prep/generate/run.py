"""Asks for a list of requests; what was answered once is not asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.generate.cache import Cache
from data_prep.generate.call import Reply, Usage, body, read_answer
from data_prep.generate.client import Client
from data_prep.generate.display import Display
from data_prep.generate.endpoint import Endpoint
from data_prep.generate.errors import AttemptError, BusyError, EndpointError, UnfitError, UnreachableError
from data_prep.generate.pace import Pace, backoff
from data_prep.generate.plan import Plan, make_plan
from data_prep.generate.task import Answer, Inputs, Request

MOST_USELESS = 8
"""Requests that may fail before any is answered; then the rest is not asked: it would be for nothing."""
_INPUT_CHARS = 60


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


@dataclass(frozen=True)
class _Miss:
    reason: str
    attempts: int


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
        plan = make_plan(requests, endpoint, cache.answer)
        with Display(len(plan.pending)) as display:
            run = _Run(endpoint, cache, display)
            if plan.pending:
                asyncio.run(run.ask_all(plan.pending))
    return _collect(requests, plan, run)


class _UselessError(Exception):
    """Asking on would be useless."""


class _Run:
    """The calls of one run and what came of them, by cache key."""

    def __init__(self, endpoint: Endpoint, cache: Cache, display: Display) -> None:
        self._endpoint = endpoint
        self._cache = cache
        self._display = display
        self._pace = Pace(endpoint.concurrency)
        self.answers: dict[str, Answer] = {}
        self.misses: dict[str, _Miss] = {}
        self.calls = 0
        self.usage = Usage()
        self._patience = max(endpoint.patience, endpoint.timeout)
        self._useless = 0
        self._trouble = "none was made"

    async def ask_all(self, pending: dict[str, Request]) -> None:
        """Settles every request: each gets an answer or a miss."""
        self._client = Client(self._endpoint)
        try:
            async with asyncio.timeout(self._patience) as self._silence:
                await self._ask_in_turn(pending)
        except TimeoutError:
            raise EndpointError(
                f"{self._endpoint.name}: no answer for {self._patience:g} s (--patience); the latest call: "
                f"{self._trouble}; what is finished is kept, and the same command goes on from there"
            ) from None
        except _UselessError as error:
            for key in pending.keys() - self.answers.keys() - self.misses.keys():
                self.misses[key] = _Miss(str(error), 0)
        finally:
            await self._client.close()

    async def _ask_in_turn(self, pending: dict[str, Request]) -> None:
        queue = iter(pending.items())
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(self._endpoint.concurrency, len(pending))):
                    workers.create_task(self._work(queue))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _work(self, queue: Iterator[tuple[str, Request]]) -> None:
        for key, request in queue:
            await self._settle(key, request)
            self._display.settled(failed=key in self.misses)

    async def _settle(self, key: str, request: Request) -> None:
        draw, attempts = 0, self._endpoint.attempts
        for attempt in range(1, attempts + 1):
            try:
                self.answers[key] = await self._draw(key, request, draw)
                return
            except AttemptError as missed:
                last = missed
            self._trouble = str(last)
            self._display.trouble(self._trouble)
            draw += last.redraw
            if last.final or attempt == attempts:
                break
            if last.pause:
                await asyncio.sleep(backoff(attempt))
        self._give_up(key, last, attempt)

    def _give_up(self, key: str, last: AttemptError, attempts: int) -> None:
        """Notes that a request failed. Raises EndpointError, or _UselessError where asking on is useless."""
        if isinstance(last, UnreachableError) and not self._client.reached:
            count = "once" if attempts == 1 else f"{attempts} times"
            raise EndpointError(
                f"{self._endpoint.base_url}: {last}, {count}; is it the right base URL, of a running server?"
            )
        self.misses[key] = _Miss(str(last), attempts)
        self._useless += not isinstance(last, UnfitError)  # there the endpoint does answer
        if self._useless >= MOST_USELESS and not self.answers:
            raise _UselessError(f"not asked, since none of the first {self._useless} was answered: {last}")

    async def _draw(self, key: str, request: Request, draw: int) -> Answer:
        """The answer of one draw, kept as soon as it is there. Raises AttemptError."""
        if draw in self._cache.unfit(key):
            raise UnfitError(self._cache.unfit(key)[draw])
        reply = await self._ask(request, draw)
        try:
            answer = read_answer(request, reply)
        except UnfitError as error:
            self._cache.put_unfit(key, draw, str(error))
            raise
        self._cache.put_answer(key, answer)
        return answer

    async def _ask(self, request: Request, draw: int) -> Reply:
        """The reply to one call, made as often as the server asks to come later."""
        while True:
            async with self._pace.turn():
                self.calls += 1
                try:
                    reply = await self._client.ask(body(request, self._endpoint, draw))
                except BusyError as busy:
                    self._trouble = str(busy)
                    self._pace.slow_down(busy)
                    continue
            self._pace.answered()
            self._silence.reschedule(asyncio.get_running_loop().time() + self._patience)
            self.usage += reply.usage
            return reply


def _collect(requests: Sequence[Request], plan: Plan, run: _Run) -> Generated:
    answers = plan.answers | run.answers
    failures = [
        Failure(number, request.task.name, _summary(request.inputs), miss.reason, miss.attempts)
        for number, (key, request) in enumerate(zip(plan.keys, requests, strict=True))
        if (miss := run.misses.get(key)) is not None
    ]
    return Generated(
        results=[answers.get(key) for key in plan.keys],
        failures=failures,
        calls=run.calls,
        from_cache=sum(key in plan.answers for key in plan.keys),
        usage=run.usage,
    )


def _summary(inputs: Inputs) -> str:
    lines = {name: " ".join(str(value).split()) for name, value in inputs.items()}
    return ", ".join(
        f"{name}: {line if len(line) <= _INPUT_CHARS else line[:_INPUT_CHARS] + '...'}"
        for name, line in lines.items()
    )
