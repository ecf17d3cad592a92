"""The health check of rollout engines, over a real HTTP server."""

from __future__ import annotations

import http.server
import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from recipe.rerule.training.watch import engine_failure


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers every request with the server's `status`."""

    def do_GET(self) -> None:
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(params=[200])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Engine) as server:
        server.status = request.param  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def dead_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose way out is a proxy, with engines' nodes not in no_proxy."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{unused_port()}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)  # made with the proxies of before


@pytest.mark.usefixtures("dead_proxy")
def test_a_healthy_engine_is_asked_past_the_proxy(address: str) -> None:
    assert engine_failure(address) is None


@pytest.mark.usefixtures("dead_proxy")
@pytest.mark.parametrize("address", [503], indirect=True)
def test_an_engine_that_refuses_is_dead(address: str) -> None:
    assert engine_failure(address) == "its health check answers 503"


@pytest.mark.usefixtures("dead_proxy")
def test_an_engine_that_is_gone_is_dead() -> None:
    assert "Connection refused" in str(engine_failure(f"127.0.0.1:{unused_port()}"))
