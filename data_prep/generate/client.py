"""One call to the endpoint, and what came of it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
from typing import TYPE_CHECKING, Any

from data_prep.generate.call import Reply, Usage
from data_prep.generate.endpoint import Endpoint
from data_prep.generate.errors import BusyError, EndpointError, FaultError, RejectedError, UnreachableError
from data_prep.generate.pace import retry_after

if TYPE_CHECKING:
    from openai import APIConnectionError, APIStatusError

_NO_KEY = "none"  # the client insists on one
_LINE_CHARS = 300
_SHORTEST_SECRET = 16
"""Characters of a key that cannot stand in an answer by chance, unlike the "EMPTY" of local servers."""
_STOPS = {
    401: "is the key in {key} right?",
    402: "is there credit left for the key in {key}?",
    403: "may the key in {key} use this model?",
    404: "are the base URL (it mostly ends in /v1) and the model right?",
    405: "is the base URL right? It mostly ends in /v1",
}
_NO_CREDIT = "insufficient_quota"  # comes with HTTP 429, and waiting does not help


class Client:
    """Makes calls, one attempt each. The key stays in here: it is cut out of whatever the server says."""

    def __init__(self, endpoint: Endpoint) -> None:
        from openai import AsyncOpenAI

        self._endpoint = endpoint
        self._key = endpoint.api_key()
        # No retries and no time limit of its own: attempts are counted, and time is taken, in one place.
        self._client = AsyncOpenAI(
            base_url=endpoint.base_url, api_key=self._key or _NO_KEY, max_retries=0, timeout=None
        )
        self.reached = False
        """Whether the server has responded at all, be it with an error."""

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, body: dict[str, Any]) -> Reply:
        """One call. Raises FaultError, RejectedError, BusyError or EndpointError."""
        import openai

        try:
            async with asyncio.timeout(self._endpoint.timeout):
                response = await self._client.chat.completions.with_raw_response.create(**body)
        except TimeoutError:
            raise FaultError(f"no answer within {self._endpoint.timeout:g} s (--timeout)") from None
        except openai.APIStatusError as error:
            self.reached = True
            raise self._status_error(error) from None
        except openai.APIConnectionError as error:
            raise self._connection_error(error) from None
        self.reached = True
        self._check_method(response.http_response)
        return self._reply(response.http_response)

    def _status_error(self, error: APIStatusError) -> Exception:
        """The exception that an HTTP status other than success stands for."""
        self._check_method(error.response)
        reason = f"HTTP {error.status_code}: {self._line(_said(error))}{self._detour(error.response)}"
        status, wait = error.status_code, retry_after(error.response.headers)
        if status in _STOPS or error.code == _NO_CREDIT:
            question = _STOPS.get(status, _STOPS[402]).format(key=self._endpoint.api_key_env)
            return self._stop(f"{reason}; {question}")
        if status == 429 or (status == 503 and wait is not None):
            return BusyError(reason, wait)
        return FaultError(reason) if status >= 500 or status == 408 else RejectedError(reason)

    def _connection_error(self, error: APIConnectionError) -> Exception:
        cause = _root(error)
        if isinstance(cause, ssl.SSLError):
            return EndpointError(
                f"{self._endpoint.base_url}: no connection: {self._line(_tls_reason(cause))}"
            )
        return UnreachableError(f"no connection ({self._line(_reason(cause))})")

    def _check_method(self, response: Any) -> None:
        """Raises EndpointError where a redirect has made a GET of the call: there is no answer that way."""
        if response.history and response.request.method != "POST":
            status = response.history[0].status_code
            raise self._stop(
                f"HTTP {status} redirects the call to {self._line(str(response.url))}, where none can be "
                "made; is the base URL right?"
            ) from None

    def _detour(self, response: Any) -> str:
        return f" (redirected to {self._line(str(response.url))})" if response.history else ""

    def _reply(self, response: Any) -> Reply:
        """The reply in a response; a server may send anything. Raises FaultError."""
        try:
            reply = _parsed(response.content)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
            sort = self._line(_sort(response)) + self._detour(response)
            raise FaultError(f"the response is no chat completion but {sort}") from None
        if len(self._key) < _SHORTEST_SECRET:
            return reply
        return Reply(self._without_key(reply.text), self._without_key(reply.finish_reason), reply.usage)

    def _stop(self, reason: str) -> EndpointError:
        return EndpointError(f"{self._endpoint.name}: {reason}")

    def _line(self, text: str) -> str:
        """The text as one short line without the key."""
        return " ".join(self._without_key(text).split())[:_LINE_CHARS]

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def _said(error: APIStatusError) -> str:
    """The message of an error in the protocol's form, otherwise all that came."""
    if isinstance(error.body, dict) and isinstance(error.body.get("message"), str):
        return error.body["message"]
    return _readable(error.response.text) or "no reason given"


def _sort(response: Any) -> str:
    """What a response is that is no chat completion, and how it begins."""
    kind = response.headers.get("content-type", "").split(";")[0] or "of no stated type"
    text = _readable(response.text)
    return f"{kind}: {text}" if text else f"empty ({kind})"


def _readable(text: str) -> str:
    """The words of a page; other text as it is."""
    if not re.match(r"\s*<(!doctype|html|\?xml)", text, re.IGNORECASE):
        return text
    bare = re.sub(r"(?is)<(script|style)\b.*?</\1>|<[^>]*>", " ", text)
    return " ".join(bare.split())


def _root(error: BaseException) -> BaseException:
    """What an exception goes back to."""
    seen = {id(error)}
    while (cause := error.__cause__ or error.__context__) is not None and id(cause) not in seen:
        seen.add(id(cause))
        error = cause
    return error


def _reason(cause: BaseException) -> str:
    if isinstance(cause, socket.gaierror):
        return "the name of the host is not known"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(cause, ConnectionResetError | BrokenPipeError):
        return "the server broke it off"
    return str(cause) or type(cause).__name__


def _tls_reason(cause: ssl.SSLError) -> str:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted ({cause.verify_message})"
    if cause.reason == "WRONG_VERSION_NUMBER":
        return "the server does not speak TLS; is its address http:// rather than https://?"
    return f"TLS failed ({cause.reason or cause})"


def _parsed(content: bytes) -> Reply:
    completion = json.loads(content)
    choice, usage = completion["choices"][0], completion.get("usage") or {}
    return Reply(
        text=str(choice["message"].get("content") or ""),
        finish_reason=str(choice.get("finish_reason")),
        usage=Usage(int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)),
    )
