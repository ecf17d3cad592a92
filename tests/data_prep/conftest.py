from collections.abc import Iterator

import pytest

from data_prep.world.model import one_thread
from tests.data_prep.generate.server import KEY, ChatServer


@pytest.fixture(autouse=True, scope="package")
def threads() -> Iterator[None]:
    """Models this small run no faster on two threads, and far slower where the cores are busy."""
    with one_thread():
        yield


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    """A server that answers well until it is given another script; the key is in the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    with ChatServer() as server:
        yield server
