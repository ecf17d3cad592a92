from __future__ import annotations

from collections.abc import Iterator

import pytest

from data_prep.generate import run
from tests.data_prep.generate.server import KEY, ChatServer


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FIRST_WAIT", 0.01)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    """A server that answers well until it is given another script."""
    with ChatServer() as server:
        yield server
