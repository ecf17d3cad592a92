"""Endpoints that fail, and inputs of commands that are damaged or do not belong there."""

from __future__ import annotations

from dataclasses import dataclass

from tests.data_prep.generate.server import (
    KEY,
    Behaviour,
    hang_up,
    hang_up_halfway,
    raw,
    say,
    send,
    status,
    trickle,
)
from tests.refused.cases import Case


@dataclass(frozen=True)
class EndpointCase(Case):
    """A server that answers every call so, and options; `says` must stand in the one line."""

    behaviour: Behaviour
    says: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class AddressCase(Case):
    """Options of an endpoint, {url} in them filled with a good server's; `says` as above."""

    options: tuple[str, ...]
    says: str


def page(code: int, title: str) -> Behaviour:
    """An HTML page, as proxies and log-in forms send it."""
    body = f"<!DOCTYPE html><html><head><style>p {{}}</style><title>{title}</title></head></html>".encode()
    return lambda handler, call: send(handler, code, body, **{"content-type": "text/html; charset=utf-8"})


def redirect(code: int, to: str) -> Behaviour:
    return lambda handler, call: send(handler, code, b"", location=to)


def away(code: int, to: str) -> Behaviour:
    """A redirect to a path that answers well."""

    def answer(handler, call) -> None:  # type: ignore[no-untyped-def]
        (redirect(code, to) if call.path.startswith("/v1/") else page(200, "Log in"))(handler, call)

    return answer


def garbage(handler, call) -> None:  # type: ignore[no-untyped-def]
    """Something that is no HTTP."""
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    handler.wfile.flush()
    handler.close_connection = True


_ENDPOINT = "endpoint of generated data"
_DEEP = b"[" * 10_000
_BEHAVIOURS: dict[str, tuple[Behaviour, str]] = {
    "400": (status(400, "max_tokens is too large"), "HTTP 400: max_tokens is too large"),
    "400 as a page": (page(400, "Bad request"), "HTTP 400: Bad request"),
    "400 without a reason": (raw(b""), "no chat completion but empty"),
    "400 with the key": (status(400, f"unknown key {KEY}"), "HTTP 400: unknown key ***"),
    "400 of deep JSON": (lambda handler, call: send(handler, 400, _DEEP), "HTTP 400: [[["),
    "401": (status(401, "Incorrect API key"), "HTTP 401: Incorrect API key; is the key in OPENAI_API_KEY"),
    "401 with the key": (status(401, f"wrong key {KEY}"), "HTTP 401: wrong key ***"),
    "402": (status(402, "pay"), "is there credit left"),
    "403": (status(403, "no"), "may the key in OPENAI_API_KEY use this model?"),
    "404, the model is unknown": (
        status(404, "The model `tiny` does not exist."),
        "model tiny: HTTP 404: The model `tiny` does not exist.; are the base URL",
    ),
    "405": (status(405, "Method not allowed"), "is the base URL right?"),
    "422": (status(422, "seed is not permitted"), "HTTP 422: seed is not permitted"),
    "429 for lack of credit": (status(429, "quota", "insufficient_quota"), "is there credit left"),
    "429 for two hours": (status(429, "daily limit", retry_after="7200"), "only asks to slow down"),
    "500": (status(500, "out of memory"), "HTTP 500: out of memory"),
    "500 with the key": (status(500, f"trace of {KEY}"), "HTTP 500: trace of ***"),
    "502 as a page": (page(502, "Bad gateway"), "HTTP 502: Bad gateway"),
    "a page": (page(200, "Log in"), "no chat completion but text/html: Log in"),
    "a page with the key": (page(200, KEY), "no chat completion but text/html: ***"),
    "text": (raw(b"hello", **{"content-type": "text/plain"}), "no chat completion but text/plain: hello"),
    "an empty response": (raw(b""), "no chat completion but empty (application/json)"),
    "an error with status 200": (raw(b'{"error": "model is loading"}'), "model is loading"),
    "cut JSON": (raw(b'{"choices": [{'), 'no chat completion but application/json: {"choices": [{'),
    "deep JSON": (raw(_DEEP), "no chat completion but application/json: [[["),
    "bytes": (raw(b"\xff\xfe\x00\x01"), "no chat completion but"),
    "numbers of tokens that are none": (
        raw(b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 1e999}}'),
        "no chat completion but",
    ),
    "a redirect to a log-in page": (away(302, "/login"), "HTTP 302 redirects the call to http://127.0.0.1"),
    "a redirect for good": (away(301, "/login"), "HTTP 301 redirects the call to http://127.0.0.1"),
    "a redirect of the call": (away(307, "/login"), "text/html: Log in (redirected to http://127.0.0.1"),
    "a redirect with the key": (away(303, f"/login?key={KEY}"), "/login?key=***, where none can be made"),
    "a redirect to itself": (redirect(307, "/v1/chat/completions"), "Exceeded maximum allowed redirects"),
    "no HTTP": (garbage, "no connection (illegal status line"),
    "a reset": (hang_up, "no connection (the server broke it off)"),
    "half a response": (hang_up_halfway, "no connection (peer closed connection"),
    "an empty answer": (say(""), "the answer is empty (finish reason 'stop')"),
    "no answer in the reply": (say(None), "the answer is empty"),
    "a filtered answer": (say("", "content_filter"), "finish reason 'content_filter'"),
    "a cut answer": (say('{"refusals": ["I', "length"), "cut off: raise the limit of tokens (--max-tokens)"),
    "an answer in words": (say("Sure! Here you go."), "the answer is not JSON"),
    "an answer of deep JSON": (say("[" * 10_000), "the answer is not JSON"),
    "an answer of another form": (say('{"note": "x"}'), "the answer breaks the schema at $"),
    "an answer with the key": (say(f'{{"{KEY}": 1}}', KEY), "the answer breaks the schema"),
}
_WRONG_ADDRESSES: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing listens": (("--base-url", "http://127.0.0.1:1/v1"), "connection refused: nothing listens there"),
    "a host that is none": (
        ("--base-url", "http://no-such-host.invalid/v1"),
        "name of the host is not",
    ),
    "TLS to a server without it": (
        ("--base-url", "https{url}"),
        "does not speak TLS; is its address http://",
    ),
    "no scheme": (("--base-url", "localhost:8000/v1"), "base URL must look like http://localhost:8000/v1"),
    "another scheme": (("--base-url", "ftp://localhost/v1"), "base URL must look like"),
    "a port that is none": (("--base-url", "http://localhost:99999/v1"), "base URL must look like"),
    "a port of letters": (("--base-url", "http://localhost:port/v1"), "base URL must look like"),
    "a space in the address": (("--base-url", "http://local host/v1"), "base URL must look like"),
    "a password in the address": (("--base-url", f"http://me:{KEY}@localhost/v1"), "must hold no password"),
    "a key in the address": (("--base-url", f"http://localhost/v1?key={KEY}"), "must end before any ? or #"),
    "the key for its name": (("--api-key-env", KEY), "takes the name of an environment variable, not a key"),
    "an empty model": (("--model", " "), "model must not be empty"),
    "no model": ((), "--base-url and --model go together"),
    "no time": (("--timeout", "0"), "timeout must be more than 0 seconds"),
    "endless time": (("--timeout", "inf"), "timeout must be more than 0 seconds, and finite"),
    "no patience": (("--patience", "-1"), "patience must be more than 0 seconds"),
    "no number": (("--timeout", "soon"), "argument --timeout: invalid float value: 'soon'; see python -m"),
    "temperature nan": (("--temperature", "nan"), "temperature must not be negative"),
    "a price of nan": (("--price-in", "nan", "--price-out", "1"), "price must not be negative"),
    "one price": (("--price-in", "1"), "price needs both"),
    "no attempts": (("--attempts", "0"), "attempts must be at least 1"),
    "no limit": (("--limit", "0"), "argument --limit: '0' is no whole number above 0"),
}
ENDPOINT_CASES = [
    EndpointCase(_ENDPOINT, name, "refused", behaviour, says)
    for name, (behaviour, says) in _BEHAVIOURS.items()
]
ADDRESS_CASES = [
    AddressCase("options of an endpoint", name, "refused", options, says)
    for name, (options, says) in _WRONG_ADDRESSES.items()
]
ENDPOINT_CASES.append(
    EndpointCase(
        _ENDPOINT,
        "silence",
        "refused",
        trickle,
        "no answer for 0.5 s (--patience); the latest call: no answer within 0.2 s (--timeout)",
        ("--timeout", "0.2", "--patience", "0.5", "--attempts", "90"),
    )
)
CASES: list[Case] = [*ENDPOINT_CASES, *ADDRESS_CASES]
