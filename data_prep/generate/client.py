"""One call to the endpoint, and what came of it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from data_prep.generate.call import Reply, Usage
from data_prep.generate.endpoint import Endpoint
from data_prep.generate.errors import BusyError, EndpointError, FaultError, RejectedError, UnreachableError
from data_prep.generate.pace import retry_after

if TYPE_CHECKING:
    from openai import APIStatusError

_NO_KEY = "none"  # the client insists on one
_LINE_CHARS = 300
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
            raise FaultError(f"no answer within {self._endpoint.timeout:g} s") from None
        except openai.APIStatusError as error:
            self.reached = True
            raise self._status_error(error) from None
        except openai.APIConnectionError as error:
            raise UnreachableError(self._line(f"no connection ({error.__cause__ or error})")) from None
        self.reached = True
        return _reply(response.content)

    def _status_error(self, error: APIStatusError) -> Exception:
        """The exception that an HTTP status other than success stands for."""
        status, reason = error.status_code, f"HTTP {error.status_code}: {self._line(_said(error))}"
        wait = retry_after(error.response.headers)
        if status in _STOPS or error.code == _NO_CREDIT:
            question = _STOPS.get(status, _STOPS[402]).format(key=self._endpoint.api_key_env)
            return EndpointError(
                f"{self._endpoint.base_url}, model {self._endpoint.model}: {reason}; {question}"
            )
        if status == 429 or (status == 503 and wait is not None):
            return BusyError(reason, wait)
        return FaultError(reason) if status >= 500 or status == 408 else RejectedError(reason)

    def _line(self, text: str) -> str:
        """The text as one short line without the key."""
        line = " ".join(text.split())
        return (line.replace(self._key, "***") if self._key else line)[:_LINE_CHARS]


def _said(error: APIStatusError) -> str:
    """The message of an error in the protocol's form, otherwise all that came."""
    if isinstance(error.body, dict) and isinstance(error.body.get("message"), str):
        return error.body["message"]
    return error.response.text or "no reason given"


def _reply(content: bytes) -> Reply:
    """The reply in a response; a server may send anything. Raises FaultError."""
    try:
        completion = json.loads(content)
        choice, usage = completion["choices"][0], completion.get("usage") or {}
        return Reply(
            text=str(choice["message"].get("content") or ""),
            finish_reason=str(choice.get("finish_reason")),
            usage=Usage(int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise FaultError("the response is no chat completion") from None
