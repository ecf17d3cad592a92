from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from data_prep.generate import Endpoint, add_call_arguments, add_endpoint_arguments, endpoint_of

URL = "http://localhost:8000/v1"


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_endpoint_arguments(parser)
    return parser.parse_args(arguments)


def test_no_endpoint_without_its_options() -> None:
    options = parse()
    assert endpoint_of(options) is None
    assert options.dry_run is False


def test_defaults_are_those_of_the_endpoint() -> None:
    assert endpoint_of(parse("--base-url", URL, "--model", "m")) == Endpoint(URL, "m")


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


def test_help_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    assert "default: 16" in capsys.readouterr().out
