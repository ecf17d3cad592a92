"""Endpoints that fail, and inputs of commands that are damaged or do not belong there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


def garbage(handler, call) -> None:  # type: ignore[no-untyped-def]
    """Something that is no HTTP."""
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    handler.wfile.flush()
    handler.close_connection = True


_ENDPOINT = "endpoint of generated data"
_DEEP = b"[" * 10_000
_BEHAVIOURS: dict[str, tuple[Behaviour, str]] = {
    "400": (status(400, "max_tokens is too large"), "HTTP 400: max_tokens is too large"),
    "400 as a page": (page(400, "Bad request"), "<title>Bad request</title>"),
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
    "429 for two hours": (status(429, "daily limit", retry_after="7200"), "HTTP 429: daily limit"),
    "500": (status(500, "out of memory"), "HTTP 500: out of memory"),
    "500 with the key": (status(500, f"trace of {KEY}"), "HTTP 500: trace of ***"),
    "502 as a page": (page(502, "Bad gateway"), "<title>Bad gateway</title>"),
    "a page": (page(200, "Log in"), "no chat completion but text/html: <!DOCTYPE html>"),
    "a page with the key": (page(200, KEY), "<title>***</title>"),
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
    "a redirect to a log-in page": (redirect(302, "/login"), "HTTP 302 redirects the call to /login; is"),
    "a redirect of the call": (redirect(307, "/login"), "HTTP 307 redirects the call to /login; is the base"),
    "a redirect with the key": (redirect(303, f"/login?key={KEY}"), "/login?key=***; is the base URL right?"),
    "no HTTP": (garbage, "no connection (illegal status line"),
    "a reset": (hang_up, "no connection (Connection reset by peer)"),
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
    "nothing listens": (("--base-url", "http://127.0.0.1:1/v1"), "no connection (Connect"),
    "a host that is none": (
        ("--base-url", "http://no-such-host.invalid/v1"),
        "no connection (Name or service not known)",
    ),
    "TLS to a server without it": (
        ("--base-url", "https{url}"),
        "wrong version number",
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
        "no answer within 0.3 s (--timeout)",
        ("--timeout", "0.3"),
    )
)


@dataclass(frozen=True)
class FileCase(Case):
    """A file and the arguments of a command, in which {file} stands for it; `says` as above.

    `content` is the file's text, or the JSON value in it; None for no file.
    """

    content: Any
    arguments: tuple[str, ...]
    says: str


def _score(benchmark: str) -> tuple[str, ...]:
    return ("evaluate", "score", "--benchmark", benchmark, "--log", "{file}")


def _metric(name: str, **sample: Any) -> dict[str, Any]:
    return {name: {"value_by_index": {"0": sample}}}


_ANSWER = {
    "index": 0, "section": "forget", "mode": "qa", "family": "direct", "subject": "Ada", "prompt": "Where?",
    "golds": ["Paris"], "response": "In Paris.",
}  # fmt: skip
_TOFU = _metric("forget_Q_A_ROUGE", rougeL_recall=0.5)
_MUSE = _metric("forget_knowmem_ROUGE", rougeL_f1=0.5)
_NAN = float("nan")
_SCORED: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "a MUSE log as TOFU": (_MUSE, _score("tofu"), "a log of MUSE-Books, and --benchmark is tofu: score"),
    "a TOFU log as MUSE": (_TOFU, _score("muse-books"), "a log of TOFU, and --benchmark is muse-books"),
    "a TOFU log as RWKU": (_TOFU, _score("rwku"), "a log of TOFU, and --benchmark is rwku"),
    "a MUSE log as the world": (_MUSE, _score("world"), "a log of MUSE-Books, and --benchmark is world"),
    "answers as TOFU": ([_ANSWER], _score("tofu"), "input.json: not a JSON object of metrics"),
    "answers as MUSE": (
        [_ANSWER],
        _score("muse-books"),
        "input.json: not a JSON object of metrics",
    ),
    "answers without a target as RWKU": ([_ANSWER], _score("rwku"), "nothing that --benchmark rwku scores"),
    "no file": (None, _score("tofu"), "input.json: no such file"),
    "no file of answers": (None, _score("world"), "input.json: no such file"),
    "an empty file": ("", _score("tofu"), "input.json is empty"),
    "an empty file of answers": ("", _score("world"), "holds nothing that --benchmark world scores"),
    "a cut log": ('{"forget_Q_A_ROUGE": {"value', _score("tofu"), "is not complete JSON: it is cut off in"),
    "cut answers": ('{"index": 0}\n{"ind', _score("world"), "holds nothing that --benchmark world scores"),
    "a deep log": ("[" * 10_000, _score("tofu"), "input.json is nested too deeply"),
    "deep answers": ("[" * 10_000, _score("rwku"), "holds nothing that --benchmark rwku scores"),
    "a key twice": ('{"m": {"a": 1}, "m": {}}', _score("tofu"), "input.json: m occurs twice"),
    "a log of a recall of 57": (
        _metric("forget_Q_A_ROUGE", rougeL_recall=57), _score("tofu"),
        "forget_Q_A_ROUGE, index 0: rougeL_recall is 57, outside [0, 1]",
    ),
    "a log of NaN": (
        _metric("forget_Q_A_ROUGE", rougeL_recall=_NAN), _score("tofu"),
        "index 0: rougeL_recall is nan; a metric over it would be meaningless",
    ),
    "a retained log of another benchmark": (
        _MUSE, ("evaluate", "score", "--benchmark", "tofu", "--retain-log", "{file}", "--log", "{file}"),
        "a log of MUSE-Books, and --benchmark is tofu",
    ),
    "one file twice": ([_ANSWER], (*_score("world"), "{file}"), "input.json is given twice"),
    "an unknown benchmark": ([_ANSWER], _score("mmlu"), "argument --benchmark: invalid choice: 'mmlu'"),
    "no benchmark": ([_ANSWER], ("evaluate", "score", "--log", "{file}"), "are required: --benchmark; see"),
    "an unknown command": (None, ("evaluate", "scores"), "argument COMMAND: invalid choice: 'scores'"),
}  # fmt: skip


def _report(*more: str) -> tuple[str, ...]:
    return ("report", "--out", "{out}", "--results", "{file}", *more)


_ROW = {"base": {"forget/recall": 0.5}}
_REPORTED: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "no results": (None, _report(), "input.json does not exist"),
    "empty results": ("", _report(), "input.json is empty"),
    "cut results": ('{"base": {"forget/recall": 0.', _report(), "is not complete JSON: it is cut off"),
    "deep results": ("[" * 10_000, _report(), "input.json is nested too deeply"),
    "a list": ([_ROW], _report(), "is not as recipe.rerule.evaluate writes it: the whole"),
    "a model without metrics": ({"base": 3}, _report(), "is not as recipe.rerule.evaluate writes it: base"),
    "NaN": ({"base": {"forget/recall": _NAN}}, _report(), "holds NaN, which is no number of JSON"),
    "a recall of 57": ({"base": {"forget/recall": 57}}, _report(), "57, outside 0 to 1; evaluations give"),
    "a recall below 0": ({"base": {"forget/recall": -0.5}}, _report(), "is -0.5, outside 0 to 1"),
    "a recall in words": (
        {"base": {"forget/recall": "high"}},
        _report(),
        "base/forget/recall: Input should be a valid number",
    ),
    "a huge number": ({"base": {"x": 10**400}}, _report(), "base/x: Input should be a valid number"),
    "a model twice": ('{"base": {}, "base": {}}', _report(), "has the key 'base' twice in one object"),
    "the same results twice": (_ROW, _report("--results", "{file}"), "input.json is given twice"),
    "an unknown base": (_ROW, _report("--base", "nobody"), "--base nobody is none of the models base"),
    "a run that is none": (_ROW, _report("--run", "a={out}"), "metrics.jsonl does not exist"),
    "scores that are none": (
        _ROW,
        _report("--naturalness", "{out}_of_judge"),
        "naturalness.json does not exist",
    ),
    "no output": (
        _ROW,
        ("report", "--results", "{file}"),
        "are required: --out; see python -m",
    ),
    "an option that is none": (_ROW, _report("--titel", "x"), "unrecognized arguments: --titel x; see"),
    "a checkpoint that is none": (_ROW, ("inspect", "inspect", "{file}"), "holds no replay state"),
    "no checkpoint": (None, ("inspect", "inspect"), "are required: CHECKPOINT; see"),
    "a benchmark that is none": (None, ("data_prep", "tofus"), "argument BENCHMARK: invalid choice: 'tofus'"),
    "no source": (None, ("data_prep", "tofu", "--out", "{out}"), "are required: --source; see"),
}
FILE_CASES = [
    FileCase(group, name, "refused", *case)
    for group, cases in {
        "inputs of evaluate score": _SCORED,
        "inputs of the report and others": _REPORTED,
    }.items()
    for name, case in cases.items()
]
CASES: list[Case] = [*ENDPOINT_CASES, *ADDRESS_CASES, *FILE_CASES]
