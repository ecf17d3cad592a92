"""Where to ask: settings, options, the call as it goes out and the answer as it comes back."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_prep.generate import REFUSALS, Endpoint, Request, add_endpoint_arguments, endpoint_of
from data_prep.generate.endpoint import AnswerError, Reply, Usage, body, cache_key, read_answer
from tests.data_prep.generate.server import NOTE, notes

URL = "http://localhost:8000/v1"


@pytest.mark.parametrize("name", ["concurrency", "attempts", "max_tokens"])
def test_a_number_of_none_is_refused(name: str) -> None:
    """tests/refused tries the other settings."""
    with pytest.raises(ValueError, match=f"^endpoint: {name} must be at least 1"):
        Endpoint(URL, "m", **{name: 0})


def test_cost_is_by_the_million() -> None:
    endpoint = Endpoint(URL, "m", price_in=0.15, price_out=0.6)
    assert endpoint.cost(2_000_000, 500_000) == pytest.approx(0.15 * 2 + 0.6 * 0.5)
    assert Endpoint(URL, "m").cost(1, 1) is None


def test_the_key_comes_from_the_named_variable_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hosted")
    monkeypatch.setenv("LOCAL_KEY", " local\n")
    assert Endpoint(URL, "m").api_key() == "hosted"
    assert Endpoint(URL, "m", api_key_env="LOCAL_KEY").api_key() == "local"
    assert Endpoint(URL, "m", api_key_env="UNSET_VARIABLE").api_key() == ""


@pytest.mark.parametrize("key", ["two\nlines", "schlüssel", "tab\tbed"])
def test_a_key_that_is_none_is_refused_without_showing_it(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ValueError, match="OPENAI_API_KEY holds characters that no key has") as refused:
        Endpoint(URL, "m").api_key()
    assert key not in str(refused.value)


def test_every_option_reaches_the_endpoint() -> None:
    parser = argparse.ArgumentParser()
    add_endpoint_arguments(parser)
    given = (
        f"--base-url {URL} --model m --api-key-env KEY --concurrency 3 --timeout 4.5 --attempts 5 "
        "--temperature 0.25 --sampling-seed 7 --max-tokens 88 --price-in 0.1 --price-out 0.2 --cache there "
        "--dry-run"
    )
    options = parser.parse_args(given.split())
    expected = Endpoint(URL, "m", "KEY", 3, 4.5, 5, 0.25, 7, 88, price_in=0.1, price_out=0.2)
    assert endpoint_of(options) == expected
    assert (options.cache, options.dry_run) == (Path("there"), True)
    assert endpoint_of(parser.parse_args([])) is None


ENDPOINT = Endpoint("http://localhost:8000/v1", "tiny")
(REQUEST,) = notes(1)


def test_the_body_is_a_chat_completion_with_the_schema_enforced() -> None:
    assert body(REQUEST, replace(ENDPOINT, seed=40, temperature=0.3, max_tokens=99), draw=2) == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Write down 0."}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "note",
                "strict": True,
                "schema": {
                    "type": "object",
                    "properties": {"note": {"type": "string", "pattern": "^[A-Za-z0-9 .]{0,40}$"}},
                    "required": ["note"],
                    "additionalProperties": False,
                },
            },
        },
        "temperature": 0.3,
        "seed": 42,
        "max_completion_tokens": 99,
    }
    odd = Request(NOTE, {"number": "$number {0} ${x} $"})
    assert odd.messages()[0]["content"] == "Write down $number {0} ${x} $."


def test_the_key_of_an_answer_is_the_same_in_every_process() -> None:
    """Computed apart with sha256sum from the JSON written by hand."""
    assert cache_key(REQUEST, ENDPOINT) == "a666b0d5323867f1ceba13f8d94c590108c0d3e758917e7df7460025d21eb7c9"


@pytest.mark.parametrize(
    ("request_", "endpoint"),
    [
        (replace(REQUEST, task=replace(NOTE, name="memo")), ENDPOINT),
        (replace(REQUEST, task=replace(NOTE, version=2)), ENDPOINT),
        (replace(REQUEST, task=replace(NOTE, prompt="Write $number.")), ENDPOINT),
        (replace(REQUEST, task=replace(NOTE, schema=lambda inputs: {"type": "object"})), ENDPOINT),
        (replace(REQUEST, inputs={"number": 1}), ENDPOINT),
        (replace(REQUEST, inputs={"number": "0"}), ENDPOINT),
        (REQUEST, replace(ENDPOINT, model="other")),
        (REQUEST, replace(ENDPOINT, temperature=0.0)),
        (REQUEST, replace(ENDPOINT, seed=1)),
        (REQUEST, replace(ENDPOINT, max_tokens=10)),
    ],
)
def test_all_that_decides_the_answer_changes_its_key(request_: Request, endpoint: Endpoint) -> None:
    assert cache_key(request_, endpoint) != cache_key(REQUEST, ENDPOINT)


def test_nothing_else_changes_its_key() -> None:
    calls = {"api_key_env": "OTHER", "concurrency": 1, "timeout": 1, "attempts": 1}
    elsewhere = Endpoint("https://example.org/v1", "tiny", price_in=1, price_out=1, **calls)
    assert cache_key(REQUEST, elsewhere) == cache_key(REQUEST, ENDPOINT)
    one, other = ({"name": "A", "count": 2}, {"count": 2, "name": "A"})
    assert cache_key(Request(REFUSALS, one), ENDPOINT) == cache_key(Request(REFUSALS, other), ENDPOINT)


def test_an_answer_of_the_schema_is_read() -> None:
    any_text = replace(REQUEST, task=replace(NOTE, schema=lambda inputs: {"type": "object"}))
    written = ' {"note": "caf\\u00e9 \\ud83d\\ude00"}\n'
    assert read_answer(any_text, Reply(written, "stop", Usage())) == {"note": "café 😀"}
    assert read_answer(REQUEST, Reply('{"note": ""}', "length", Usage())) == {"note": ""}


NOT_JSON = "the answer is not JSON (finish reason 'stop')"
CUT_OFF = "the answer is cut off: raise the limit of tokens (--max-tokens)"
USELESS: list[tuple[str, str, str]] = [
    ('{"note": "x"', "stop", NOT_JSON),
    ('```json\n{"note": "x"}\n```', "stop", NOT_JSON),
    ('{"note": "\\udc00"}', "stop", NOT_JSON),
    ('{"note": "a\tb"}', "stop", NOT_JSON),
    ("[" * 100_000, "stop", NOT_JSON),
    (" \n", "content_filter", "the answer is empty (finish reason 'content_filter')"),
    ('{"note": "x', "length", CUT_OFF),
    ("", "length", CUT_OFF),
    ("[]", "stop", "the answer breaks the schema at $ (type)"),
    ("{}", "stop", "the answer breaks the schema at $ (required)"),
    ('{"note": 1}', "stop", "the answer breaks the schema at $.note (type)"),
    ('{"note": "x", "more": 1}', "stop", "the answer breaks the schema at $ (additionalProperties)"),
    ('{"note": "%s"}' % ("x" * 41), "stop", "the answer breaks the schema at $.note (pattern)"),
    ('{"note": "x"}', "stop", "x is not 0"),
]


@pytest.mark.parametrize(("text", "finish_reason", "reason"), USELESS, ids=lambda text: text[:40])
def test_what_is_no_answer_is_told(text: str, finish_reason: str, reason: str) -> None:
    def problem(inputs: Any, answer: Any) -> str:
        return f"{answer['note']} is not {inputs['number']}"

    with pytest.raises(AnswerError) as useless:
        read_answer(
            Request(replace(NOTE, problem=problem), {"number": 0}), Reply(text, finish_reason, Usage())
        )
    assert str(useless.value) == reason
