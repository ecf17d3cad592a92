from __future__ import annotations

from typing import Any

import pytest

from data_prep.generate import Endpoint

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
