from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.data_prep.generate.server import KEY, ChatServer


@pytest.fixture(autouse=True)
def _key_and_short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    """A server that answers well until it is given another script."""
    with ChatServer() as server:
        yield server
