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
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from data_prep.generate.endpoint import (
    AnswerError,
    Client,
    Endpoint,
    RequestError,
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


@dataclass(frozen=True)
class Failure:
    """A request without an answer.

    Attributes:
        request: its place in the list, from 0.
        task: the name of its task.
        inputs: its inputs, shortened, in one line.
        reason: why its last call brought no answer.
    """

    request: int
    task: str
    inputs: str
    reason: str


@dataclass(frozen=True)
class Generated:
    """What became of the requests.

    Attributes:
        results: an answer for every request, in their order; None where it failed.
        failures: one for every None, in the same order.
        calls: how many calls this run made, without those that were repeated because the server failed.
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
    again. A request that fails does not stop the others, unless none of the first MOST_USELESS is answered:
    the others then fail for the same reason, without a call.

    Raises:
        EndpointError: a wrong key, model or address, or a server that cannot be reached or lets nobody in.
        OSError: the folder cannot be read or written.
    """
    with Cache(cache_folder) as cache:
        keys = [cache_key(request, endpoint) for request in requests]
        known, pending = _sorted_out(keys, requests, cache)
        run = _Run(endpoint, cache, Progress("generate", len(pending), "requests"))
        if pending:
            with run.progress:
                asyncio.run(run.ask_all(pending))
    answers = known | run.answers
    failures = [
        Failure(number, request.task.name, request.summary(), run.misses[key])
        for number, (key, request) in enumerate(zip(keys, requests, strict=True))
        if key not in answers
    ]
    from_cache = sum(key in known for key in keys)
    return Generated([answers.get(key) for key in keys], failures, run.calls, from_cache, run.usage)


def estimate(requests: Sequence[Request], endpoint: Endpoint, cache_folder: Path) -> str:
    """The calls and tokens of `generate` with the same arguments where every first answer can be used.

    Makes no call and writes nothing.
    """
    keys = [cache_key(request, endpoint) for request in requests]
    _, asked = _sorted_out(keys, requests, Cache(cache_folder))
    texts = [request.messages()[0]["content"] + json.dumps(request.schema()) for request in asked.values()]
    prompt_tokens = sum(math.ceil(len(text.encode()) / BYTES_A_TOKEN) for text in texts)
    completion_tokens = sum(request.task.answer_tokens(request.inputs) for request in asked.values())
    return (
        f"{len(requests)} requests, {len(asked)} calls to make (the others repeat one or are known)\n"
        f"prompt tokens: about {prompt_tokens} ({BYTES_A_TOKEN} bytes of prompt and schema counted as one)\n"
        f"completion tokens: about {completion_tokens} (the usual length of each task's answers); "
        "calls that have to be repeated come on top"
    )


def _sorted_out(
    keys: Sequence[str], requests: Sequence[Request], cache: Cache
) -> tuple[dict[str, Answer], dict[str, Request]]:
    """The answers that are known, and what has to be asked, both by key; identical requests share a key.

    A kept answer has to pass the checks of today: its file may have been edited, or a check changed.
    """
    known: dict[str, Answer] = {}
    pending = dict(zip(keys, requests, strict=True))
    for key, request in list(pending.items()):
        if key in cache.answers:
            try:
                check_answer(request, cache.answers[key])
            except AnswerError:
                continue
            known[key] = cache.answers[key]
            del pending[key]
    return known, pending


class Cache:
    """Answers by key. Nothing is written before the first `put`.

    A context manager: leaving it closes the file. Raises OSError where the folder cannot be read or written.

    Attributes:
        answers: all that the folder holds.
    """

    def __init__(self, folder: Path) -> None:
        self.answers: dict[str, Answer] = {}
        self._folder = folder
        self._file: BinaryIO | None = None
        for path in sorted(folder.glob(f"*{KEPT_SUFFIX}")):  # the oldest first: a later answer replaces it
            for record in kept_records(path.read_bytes()):
                match record:
                    case {"key": str(key), "answer": dict(answer)}:
                        self.answers[key] = answer

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def put(self, key: str, answer: Answer) -> None:
        """Keeps a checked answer."""
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"{time.time_ns():020d}-{uuid.uuid4().hex}{KEPT_SUFFIX}"
            self._file = open(self._folder / name, "xb")  # noqa: SIM115 (closed by __exit__)
        self._file.write(kept_line({"key": key, "answer": answer}))
        self._file.flush()
        self.answers[key] = answer


@dataclass
class _Run:
    """The calls of one run and what came of them: answers, and reasons for their lack, by cache key."""

    endpoint: Endpoint
    cache: Cache
    progress: Progress
    answers: dict[str, Answer] = field(default_factory=dict)
    misses: dict[str, str] = field(default_factory=dict)
    calls: int = 0
    usage: Usage = field(default_factory=Usage)

    async def ask_all(self, pending: dict[str, Request]) -> None:
        """Settles every request: each gets an answer or a miss."""
        client, queue = Client(self.endpoint), iter(pending.items())
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(self.endpoint.concurrency, len(pending))):
                    workers.create_task(self._work(client, queue))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await client.close()

    async def _work(self, client: Client, queue: Iterator[tuple[str, Request]]) -> None:
        for key, request in queue:
            if len(self.misses) >= MOST_USELESS and not self.answers:
                first = next(iter(self.misses.values()))
                self.misses[key] = f"not asked, since none of the first {MOST_USELESS} was answered: {first}"
            else:
                await self._settle(client, key, request)
            self.progress.advance()

    async def _settle(self, client: Client, key: str, request: Request) -> None:
        """An answer, which is kept as soon as it is there, or a miss. Raises EndpointError."""
        reason = ""
        for draw in range(self.endpoint.attempts):
            self.calls += 1
            try:
                reply = await client.ask(body(request, self.endpoint, draw))
                self.usage += reply.usage
                self.answers[key] = read_answer(request, reply)
            except AnswerError as useless:
                reason = str(useless)
            except RequestError as failed:
                reason = str(failed)
                break
            else:
                return self.cache.put(key, self.answers[key])
        self.misses[key] = reason
        self.progress.doing(f"{len(self.misses)} failed; the latest trouble: {reason}")
