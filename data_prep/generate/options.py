"""The command-line options of an endpoint."""

from __future__ import annotations

import argparse
from pathlib import Path

from data_prep.generate.endpoint import Endpoint


def add_endpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares --base-url, --model and how to use them, --cache and --dry-run."""
    group = parser.add_argument_group(
        "generation", "What the benchmark lacks is written by a model behind an OpenAI-compatible endpoint."
    )
    group.add_argument(
        "--base-url", metavar="URL", help="address of the server, as in http://localhost:8000/v1"
    )
    group.add_argument("--model", metavar="NAME", help="name of the model at that server")
    add_call_arguments(group, Endpoint.temperature, Path("outputs/generated"))


def add_call_arguments(group: argparse._ArgumentGroup, temperature: float, cache: Path) -> None:
    """Declares how to use the model, --cache and --dry-run; `temperature` and `cache` are their defaults."""
    group.add_argument(
        "--api-key-env",
        default=Endpoint.api_key_env,
        metavar="NAME",
        help="environment variable that holds the key, if one is needed (default: %(default)s)",
    )
    _add_number(group, "--concurrency", Endpoint.concurrency, "calls at a time")
    _add_number(group, "--timeout", Endpoint.timeout, "seconds until a call counts as failed")
    _add_number(group, "--patience", Endpoint.patience, "seconds without any answer until the run stops")
    _add_number(group, "--attempts", Endpoint.attempts, "calls until a request counts as failed")
    _add_number(group, "--temperature", temperature, "temperature of sampling")
    _add_number(group, "--sampling-seed", Endpoint.seed, "seed of sampling")
    _add_number(group, "--max-tokens", Endpoint.max_tokens, "length limit of an answer")
    group.add_argument("--price-in", type=float, metavar="X", help="price of a million prompt tokens")
    group.add_argument("--price-out", type=float, metavar="X", help="price of a million completion tokens")
    group.add_argument(
        "--cache",
        type=Path,
        default=cache,
        metavar="DIR",
        help="keeps every answer, so that no call is made twice (default: %(default)s)",
    )
    group.add_argument("--dry-run", action="store_true", help="say what the calls will cost and make none")


def _add_number(group: argparse._ArgumentGroup, name: str, default: float, text: str) -> None:
    group.add_argument(
        name,
        type=type(default),
        default=default,
        metavar="N" if isinstance(default, int) else "X",
        help=f"{text} (default: %(default)s)",
    )


def endpoint_of(options: argparse.Namespace) -> Endpoint | None:
    """The endpoint that the options describe; None when they name none.

    Raises ValueError where --base-url comes without --model or the other way round, or a value is wrong.
    """
    if options.base_url is None and options.model is None:
        return None
    if options.base_url is None or options.model is None:
        raise ValueError("--base-url and --model go together: give both, or neither")
    return Endpoint(
        base_url=options.base_url,
        model=options.model,
        api_key_env=options.api_key_env,
        concurrency=options.concurrency,
        timeout=options.timeout,
        patience=options.patience,
        attempts=options.attempts,
        temperature=options.temperature,
        seed=options.sampling_seed,
        max_tokens=options.max_tokens,
        price_in=options.price_in,
        price_out=options.price_out,
    )
