"""Where to ask, and how."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

_TOKENS_OF_A_PRICE = 1_000_000


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server, a model of it and how to sample. Raises ValueError where a value is wrong.

    Attributes:
        base_url: up to and without /chat/completions, for example http://localhost:8000/v1.
        model: its name at that server.
        api_key_env: the environment variable that holds the key; it may be unset where none is asked for.
        concurrency: how many calls are under way at a time, at most.
        timeout: seconds until a call counts as failed.
        patience: seconds without any answer until the run stops; at least as long as `timeout`.
        attempts: how many calls a request gets before it counts as failed.
        temperature: of sampling.
        seed: of a request's first attempt; where its answer is of no use, the next asks with the next seed.
        max_tokens: length limit of an answer; one that is cut off there is of no use.
        price_in: of a million prompt tokens, in any currency; None where unknown.
        price_out: of a million completion tokens.
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
    price_in: float | None = None
    price_out: float | None = None
    patience: float = 600.0

    def __post_init__(self) -> None:
        self._check_address()
        for name in ("concurrency", "attempts", "max_tokens"):
            _check(getattr(self, name) >= 1, name, "must be at least 1")
        for name in ("timeout", "patience"):
            seconds = getattr(self, name)
            _check(0 < seconds < math.inf, name, "must be more than 0 seconds, and finite")
        _check(0 <= self.temperature < math.inf, "temperature", "must not be negative, and be finite")
        prices = [price for price in (self.price_in, self.price_out) if price is not None]
        _check(len(prices) != 1, "price", "needs both, of prompt and of completion tokens, or neither")
        _check(all(0 <= price < math.inf for price in prices), "price", "must not be negative, and be finite")

    def _check_address(self) -> None:
        # A key may stand in place of the variable's name by mistake, so it is not shown.
        is_name = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env) is not None
        _check(is_name, "--api-key-env", "takes the name of an environment variable, not a key")
        _check(_is_address(self.base_url), "base URL", "must look like http://localhost:8000/v1")
        address = urlsplit(self.base_url)
        # it is printed in errors
        _check(
            "@" not in address.netloc, "base URL", f"must hold no password: put a key in {self.api_key_env}"
        )
        _check(
            not (address.query or address.fragment),
            "base URL",
            f"must end before any ? or #: put a key in {self.api_key_env}",
        )
        _check(self.model.strip() != "", "model", "must not be empty")

    @property
    def name(self) -> str:
        """What errors call it: the base URL and the model."""
        return f"{self.base_url}, model {self.model}"

    def api_key(self) -> str:
        """The key from the environment, "" where there is none. Raises ValueError, which does not show it."""
        key = os.environ.get(self.api_key_env, "").strip()
        _check(key.isascii() and key.isprintable(), self.api_key_env, "holds characters that no key has")
        return key

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float | None:
        """In the currency of the prices, or None where they are unknown."""
        if self.price_in is None or self.price_out is None:
            return None
        return (prompt_tokens * self.price_in + completion_tokens * self.price_out) / _TOKENS_OF_A_PRICE


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
