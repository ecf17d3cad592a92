"""Where to ask: settings, options, and one call."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_prep.generate import (
    REFUSALS,
    Endpoint,
    Request,
    add_call_arguments,
    add_endpoint_arguments,
    endpoint_of,
)
from data_prep.generate.endpoint import MalformedError, Reply, UnfitError, Usage, body, cache_key, read_answer
from tests.data_prep.generate.server import NOTE, notes

URL = "http://localhost:8000/v1"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "localhost:8000"}, "base URL must look like"),
        ({"base_url": "ftp://host/v1"}, "base URL must look like"),
        ({"base_url": "http://"}, "base URL must look like"),
        ({"base_url": "https://me:secret@host/v1"}, "base URL must hold no password"),
        ({"model": ""}, "model must not be empty"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"timeout": 0}, "timeout must be more than 0 seconds"),
        ({"temperature": -0.1}, "temperature must not be negative"),
        ({"price_in": 1.0}, "price needs both"),
        ({"price_out": 1.0}, "price needs both"),
        ({"price_in": -1.0, "price_out": 1.0}, "price must not be negative"),
    ],
)
def test_a_wrong_value_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^endpoint: {message}") as refused:
        Endpoint(**{"base_url": URL, "model": "m"} | settings)
    assert "secret" not in str(refused.value)


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
    with pytest.raises(ValueError, match="OPENAI_API_KEY") as refused:
        Endpoint(URL, "m").api_key()
    assert key not in str(refused.value)


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_endpoint_arguments(parser)
    return parser.parse_args(arguments)


def test_no_endpoint_without_its_options() -> None:
    options = parse()
    assert endpoint_of(options) is None
    assert options.dry_run is False


def test_every_option_reaches_the_endpoint() -> None:
    options = parse(
        *(
            "--base-url",
            URL,
            "--model",
            "m",
            "--api-key-env",
            "KEY",
            "--concurrency",
            "3",
            "--timeout",
            "4.5",
        ),
        *("--attempts", "5", "--temperature", "0.25", "--sampling-seed", "7", "--max-tokens", "88"),
        *("--price-in", "0.1", "--price-out", "0.2", "--cache", "there", "--dry-run"),
    )
    assert endpoint_of(options) == Endpoint(
        base_url=URL,
        model="m",
        api_key_env="KEY",
        concurrency=3,
        timeout=4.5,
        attempts=5,
        temperature=0.25,
        seed=7,
        max_tokens=88,
        price_in=0.1,
        price_out=0.2,
    )
    assert options.cache == Path("there")
    assert options.dry_run is True


def test_another_command_has_defaults_of_its_own() -> None:
    parser = argparse.ArgumentParser()
    add_call_arguments(parser.add_argument_group(), 0.0, Path("elsewhere"))
    options = parser.parse_args(["--attempts", "3"])
    assert (options.temperature, options.cache, options.attempts) == (0, Path("elsewhere"), 3)
    assert parser.parse_args(["--temperature", "0.5"]).temperature == 0.5


@pytest.mark.parametrize("arguments", [("--base-url", URL), ("--model", "m")])
def test_one_without_the_other_is_refused(arguments: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="--base-url and --model go together"):
        endpoint_of(parse(*arguments))


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


def test_inputs_that_look_like_a_template_stay_as_they_are() -> None:
    request = Request(NOTE, {"number": "$number {0} ${x} $"})
    assert request.messages()[0]["content"] == "Write down $number {0} ${x} $."


@pytest.mark.parametrize("inputs", [{}, {"numbr": 1}, {"number": 1, "extra": 2}])
def test_inputs_other_than_those_of_the_prompt_are_refused(inputs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="task note takes the inputs number, not"):
        Request(NOTE, inputs)


def test_the_key_is_the_same_in_every_process() -> None:
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
def test_all_that_decides_the_answer_changes_the_key(request_: Request, endpoint: Endpoint) -> None:
    assert cache_key(request_, endpoint) != cache_key(REQUEST, ENDPOINT)


def test_nothing_else_changes_the_key() -> None:
    elsewhere = Endpoint(
        "https://example.org/v1",
        "tiny",
        api_key_env="OTHER",
        concurrency=1,
        timeout=1,
        attempts=1,
        price_in=1,
        price_out=1,
    )
    assert cache_key(REQUEST, elsewhere) == cache_key(REQUEST, ENDPOINT)
    one, other = ({"name": "A", "count": 2}, {"count": 2, "name": "A"})
    assert cache_key(Request(REFUSALS, one), ENDPOINT) == cache_key(Request(REFUSALS, other), ENDPOINT)


def reply(text: str, finish_reason: str = "stop") -> Reply:
    return Reply(text, finish_reason, Usage())


def test_an_answer_of_the_schema_is_read() -> None:
    any_text = replace(REQUEST, task=replace(NOTE, schema=lambda inputs: {"type": "object"}))
    assert read_answer(any_text, reply(' {"note": "caf\\u00e9 \\ud83d\\ude00"}\n')) == {"note": "café 😀"}
    assert read_answer(REQUEST, reply('{"note": ""}', "length")) == {"note": ""}


@pytest.mark.parametrize(
    ("text", "finish_reason", "reason"),
    [
        ('{"note": "x"', "stop", "the answer is not JSON (finish reason 'stop')"),
        ('```json\n{"note": "x"}\n```', "stop", "the answer is not JSON (finish reason 'stop')"),
        ('{"note": "\\udc00"}', "stop", "the answer is not JSON (finish reason 'stop')"),
        ('{"note": "a\tb"}', "stop", "the answer is not JSON (finish reason 'stop')"),
        ("[" * 100_000, "stop", "the answer is not JSON (finish reason 'stop')"),
        (" \n", "content_filter", "the answer is empty (finish reason 'content_filter')"),
        ('{"note": "x', "length", "the answer is cut off: raise the limit of tokens (--max-tokens)"),
        ("", "length", "the answer is cut off: raise the limit of tokens (--max-tokens)"),
        ("[]", "stop", "the answer breaks the schema at $ (type)"),
        ("{}", "stop", "the answer breaks the schema at $ (required)"),
        ('{"note": 1}', "stop", "the answer breaks the schema at $.note (type)"),
        ('{"note": "x", "more": 1}', "stop", "the answer breaks the schema at $ (additionalProperties)"),
        ('{"note": "%s"}' % ("x" * 41), "stop", "the answer breaks the schema at $.note (pattern)"),
    ],
    ids=lambda text: text[:40],
)
def test_what_is_no_answer_is_malformed(text: str, finish_reason: str, reason: str) -> None:
    with pytest.raises(MalformedError) as malformed:
        read_answer(REQUEST, reply(text, finish_reason))
    assert str(malformed.value) == reason


def test_an_answer_that_the_task_finds_wrong_is_unfit() -> None:
    picky = replace(NOTE, problem=lambda inputs, answer: f"{answer['note']} is not {inputs['number']}")
    with pytest.raises(UnfitError, match=r"^x is not 0$"):
        read_answer(Request(picky, {"number": 0}), reply('{"note": "x"}'))
