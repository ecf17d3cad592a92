"""Where to ask and how, one call to it, and what came of the call."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from data_prep.generate.tasks import Answer, Request


class EndpointError(ValueError):
    """The endpoint will serve no request as it is called now: the run stops. The message is one line."""


class RequestError(Exception):
    """The server has refused or failed this request, after all attempts; the message is the reason."""


class AnswerError(Exception):
    """An answer came that is of no use; the message is the reason. The next seed may give a better one."""


# ---- where to ask, and how ----


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server, a model of it and how to sample. Raises ValueError where a value is wrong.

    Attributes:
        base_url: up to and without /chat/completions, for example http://localhost:8000/v1.
        model: its name at that server.
        api_key_env: the environment variable that holds the key; it may be unset where none is asked for.
        concurrency: how many calls are under way at a time, at most.
        timeout: seconds until a call counts as failed.
        attempts: how often a call is made where the server fails, and how many seeds are tried where answers
            are of no use.
        temperature: of sampling.
        seed: of a request's first answer; where it is of no use, the next call has the next seed.
        max_tokens: length limit of an answer; one that is cut off there is of no use.
    """

    base_url: str
    model: str
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: int = 16
    timeout: float = 120.0
    attempts: int = 8
    temperature: float = 0.7
    seed: int = 0
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        # A key may stand in place of the variable's name by mistake, so it is not shown.
        is_name = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env) is not None
        _check(is_name, "--api-key-env", "takes the name of an environment variable, not a key")
        _check(_is_address(self.base_url), "base URL", "must look like http://localhost:8000/v1")
        address = urlsplit(self.base_url)  # it is printed in errors, and must hold no secret
        advice = f"put a key in {self.api_key_env}"
        _check("@" not in address.netloc, "base URL", f"must hold no password: {advice}")
        _check(not address.query + address.fragment, "base URL", f"must end before any ? or #: {advice}")
        _check(self.model.strip() != "", "model", "must not be empty")
        for name in ("concurrency", "attempts", "max_tokens"):
            _check(getattr(self, name) >= 1, name, "must be at least 1")
        _check(0 < self.timeout < math.inf, "timeout", "must be more than 0 seconds, and finite")
        _check(0 <= self.temperature < math.inf, "temperature", "must not be negative, and be finite")

    @property
    def name(self) -> str:
        """What errors call it: the base URL and the model."""
        return f"{self.base_url}, model {self.model}"

    def api_key(self) -> str:
        """The key from the environment, "" where there is none. Raises ValueError, which does not show it."""
        key = os.environ.get(self.api_key_env, "").strip()
        _check(key.isascii() and key.isprintable(), self.api_key_env, "holds characters that no key has")
        return key


def _is_address(url: str) -> bool:
    """Whether a URL can be asked: http or https, with a host, and a port that exists if any."""
    try:
        address = urlsplit(url)
        port = address.port
    except ValueError:
        return False
    spaced = any(character.isspace() or not character.isprintable() for character in url)
    return address.scheme in ("http", "https") and bool(address.hostname) and port != 0 and not spaced


def _check(right: bool, name: str, rule: str) -> None:
    if not right:
        raise ValueError(f"endpoint: {name} {rule}")


# ---- the command-line options of an endpoint ----


def add_endpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares --base-url, --model and how to use them, --cache and --dry-run."""
    group = parser.add_argument_group(
        "generation", "What the benchmark lacks is written by a model behind an OpenAI-compatible endpoint."
    )
    group.add_argument(
        "--base-url", metavar="URL", help="address of the server, as in http://localhost:8000/v1"
    )
    group.add_argument("--model", metavar="NAME", help="name of the model at that server")
    text = "the prompt of a task: TASK=paper, or TASK=FILE with {query}, {answer}, {target} or {name} in it; "
    text += "TASK is blank, boundary, passage_qa or refusals; may be given several times"
    group.add_argument("--prompt", action="append", default=[], metavar="TASK=FILE", help=text)
    add_call_arguments(group, Endpoint.temperature, Path("outputs/generated"))


def add_call_arguments(group: argparse._ArgumentGroup, temperature: float, cache: Path) -> None:
    """Declares how to use the model, --cache and --dry-run; `temperature` and `cache` are their defaults."""
    key = "environment variable that holds the key, if one is needed (default: %(default)s)"
    group.add_argument("--api-key-env", default=Endpoint.api_key_env, metavar="NAME", help=key)
    numbers: list[tuple[str, float, str]] = [
        ("--concurrency", Endpoint.concurrency, "calls at a time"),
        ("--timeout", Endpoint.timeout, "seconds until a call counts as failed"),
        ("--attempts", Endpoint.attempts, "calls until a request counts as failed"),
        ("--temperature", temperature, "temperature of sampling"),
        ("--sampling-seed", Endpoint.seed, "seed of sampling"),
        ("--max-tokens", Endpoint.max_tokens, "length limit of an answer"),
    ]
    for name, default, text in numbers:
        metavar = "N" if isinstance(default, int) else "X"
        text = f"{text} (default: %(default)s)"
        group.add_argument(name, type=type(default), default=default, metavar=metavar, help=text)
    kept = "keeps every answer, so that no call is made twice (default: %(default)s)"
    group.add_argument("--cache", type=Path, default=cache, metavar="DIR", help=kept)
    group.add_argument("--dry-run", action="store_true", help="say how many calls and tokens it will take")


def endpoint_of(options: argparse.Namespace) -> Endpoint | None:
    """The endpoint that the options describe; None when they name none.

    Raises ValueError where --base-url comes without --model or the other way round, or a value is wrong.
    """
    if options.base_url is None and options.model is None:
        return None
    if options.base_url is None or options.model is None:
        raise ValueError("--base-url and --model go together: give both, or neither")
    given = {one.name: getattr(options, one.name) for one in fields(Endpoint) if one.name != "seed"}
    return Endpoint(**given, seed=options.sampling_seed)


# ---- a request as it goes over the wire, the key of its answer, and the answer as it comes back ----


@dataclass(frozen=True)
class Usage:
    """Tokens, as the server counts them; 0 where it does not."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens
        )


@dataclass(frozen=True)
class Reply:
    """What the model wrote, and why it stopped ("stop", "length" ...)."""

    text: str
    finish_reason: str
    usage: Usage


def body(request: Request, endpoint: Endpoint, draw: int) -> dict[str, Any]:
    """The call's JSON: of draw 0, or of a later one with another seed."""
    return {
        "model": endpoint.model,
        "messages": request.messages(),
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": request.task.name, "schema": request.schema(), "strict": True},
        },
        "temperature": endpoint.temperature,
        "seed": endpoint.seed + draw,
        "max_completion_tokens": endpoint.max_tokens,
    }


def cache_key(request: Request, endpoint: Endpoint) -> str:
    """SHA-256, in hex, over all that decides the answer; which server gives it does not."""
    decisive = {
        "task": request.task.name,
        "version": request.task.version,
        "inputs": dict(request.inputs),  # an answer is judged by them
        "body": body(request, endpoint, draw=0),
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def read_answer(request: Request, reply: Reply) -> Answer:
    """The answer in a reply. Raises AnswerError."""
    try:
        answer = json.loads(reply.text)
        json.dumps(answer, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        if reply.finish_reason == "length":
            reason = "the answer is cut off: raise the limit of tokens (--max-tokens)"
        else:
            kind = "not JSON" if reply.text.strip() else "empty"
            reason = f"the answer is {kind} (finish reason {reply.finish_reason[:40]!r})"
        raise AnswerError(reason) from None
    check_answer(request, answer)
    return answer


def check_answer(request: Request, answer: Any) -> None:
    """Raises AnswerError where the answer breaks the schema, or the task finds it wrong."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(request.schema()).iter_errors(answer))
    if error is not None:
        raise AnswerError(f"the answer breaks the schema at {error.json_path} ({error.validator})")
    if (problem := request.task.problem(request.inputs, answer)) is not None:
        raise AnswerError(problem)


# ---- one call, and what came of it ----

_SHORTEST_SECRET = 16
"""Characters of a key that cannot stand in an answer by chance, unlike the "EMPTY" of local servers."""
_STOPS = {
    401: "is the key in {key} right?",
    402: "is there credit left for the key in {key}?",
    403: "may the key in {key} use this model?",
    404: "are the base URL (it mostly ends in /v1) and the model right?",
    405: "is the base URL right? It mostly ends in /v1",
}


class Client:
    """Makes calls. The key stays in here: it is cut out of whatever the server says.

    openai's library repeats a call that the server fails, after a wait that grows or that the server
    asks for.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        self._endpoint = endpoint
        self._key = endpoint.api_key()
        self._client = AsyncOpenAI(
            base_url=endpoint.base_url,
            api_key=self._key or "none",  # the library insists on one
            max_retries=endpoint.attempts - 1,
            timeout=endpoint.timeout,
            # A call that is redirected may become a GET, and the key goes to another address.
            http_client=DefaultAsyncHttpxClient(follow_redirects=False),
        )
        self.reached = False
        """Whether the server has responded at all, be it with an error."""

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, body: dict[str, Any]) -> Reply:
        """One call, repeated where the server fails. Raises AnswerError, RequestError or EndpointError."""
        import openai

        # The library's limit is of each wait for a byte: a response that trickles would never end.
        longest = self._endpoint.timeout * self._endpoint.attempts
        try:
            async with asyncio.timeout(longest):
                raw = await self._client.chat.completions.with_raw_response.create(**body)
        except (TimeoutError, openai.APITimeoutError):
            raise RequestError(f"no answer within {self._endpoint.timeout:g} s (--timeout)") from None
        except openai.APIStatusError as error:
            self.reached = True
            raise self._status_error(error) from None
        except openai.APIConnectionError as error:
            raise self._connection_error(error) from None
        self.reached = True
        response = raw.http_response
        try:
            completion = json.loads(response.content)
            choice, usage = completion["choices"][0], completion.get("usage") or {}
            text, finish = str(choice["message"].get("content") or ""), str(choice.get("finish_reason"))
            tokens = Usage(int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
            kind = response.headers.get("content-type", "").split(";")[0] or "of no stated type"
            said = self._line(f"{kind}: {response.text}") if response.text else f"empty ({kind})"
            raise AnswerError(f"the response is no chat completion but {said}") from None
        if len(self._key) < _SHORTEST_SECRET:
            return Reply(text, finish, tokens)
        return Reply(self._without_key(text), self._without_key(finish), tokens)

    def _status_error(self, error: Any) -> Exception:
        """The exception that openai.APIStatusError, an HTTP status other than success, stands for."""
        status, key = error.status_code, self._endpoint.api_key_env
        said = error.body.get("message") if isinstance(error.body, dict) else None
        if not isinstance(said, str):  # not in the protocol's form: all that came
            said = error.response.text or "no reason given"
        reason = f"HTTP {status}: {self._line(said)}"
        if status in range(300, 400):
            address = self._line(error.response.headers.get("location", "nowhere"))
            reason = f"HTTP {status} redirects the call to {address}; is the base URL right?"
            return EndpointError(f"{self._endpoint.name}: {reason}")
        if status in _STOPS or error.code == "insufficient_quota":  # which comes with HTTP 429
            question = _STOPS.get(status, _STOPS[402]).format(key=key)
            return EndpointError(f"{self._endpoint.name}: {reason}; {question}")
        return RequestError(reason)

    def _connection_error(self, error: BaseException) -> Exception:
        """The exception that a connection's failure stands for, told by what it goes back to."""
        while (cause := error.__cause__ or error.__context__) is not None:
            error = cause
        said = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        reason = f"no connection ({self._line(said)})"
        if self.reached:
            return RequestError(reason)
        return EndpointError(
            f"{self._endpoint.base_url}: {reason}; is it the right base URL, of a running server?"
        )

    def _line(self, text: str) -> str:
        """The text as one short line without the key."""
        return " ".join(self._without_key(text).split())[:300]

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text
