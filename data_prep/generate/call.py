"""A request as it goes over the wire, the key of its answer, and the answer as it comes back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from data_prep.generate.endpoint import Endpoint
from data_prep.generate.errors import MalformedError, UnfitError
from data_prep.generate.task import Answer, Request


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
    """The answer in a reply. Raises MalformedError or UnfitError."""
    try:
        answer = json.loads(reply.text)
        json.dumps(answer, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        raise MalformedError(_why_unreadable(reply)) from None
    check_answer(request, answer)
    return answer


def _why_unreadable(reply: Reply) -> str:
    if reply.finish_reason == "length":
        return "the answer is cut off: raise the limit of tokens (--max-tokens)"
    kind = "not JSON" if reply.text.strip() else "empty"
    return f"the answer is {kind} (finish reason {reply.finish_reason[:40]!r})"


def check_answer(request: Request, answer: Any) -> None:
    """Raises MalformedError where the answer breaks the schema, UnfitError where the task finds it wrong."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(request.schema()).iter_errors(answer))
    if error is not None:
        raise MalformedError(f"the answer breaks the schema at {error.json_path} ({error.validator})")
    problem = request.task.problem(request.inputs, answer)
    if problem is not None:
        raise UnfitError(problem)
