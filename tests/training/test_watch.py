"""The health check of rollout engines, over a real HTTP server."""

from __future__ import annotations

import http.server
import re
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError

from recipe.rerule.training import watch
from recipe.rerule.training.watch import QueueWatch, Watch, WorkerFailureError, engine_failure

KINDS = pytest.mark.parametrize("kind", [Watch, QueueWatch])


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


@pytest.fixture
def dead() -> str:
    """An address at which nothing answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize(
    ("address", "said"), [(200, None), (503, "its health check answers 503")], indirect=["address"]
)
def test_an_engine_is_asked_past_the_proxy(
    address: str, said: str | None, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine whose way out is a proxy, here a dead one, with engines' nodes not in no_proxy."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://{dead}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)  # made with the proxies of before
    assert engine_failure(address) == said


def watching(kind: type[Watch], address: str, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """A watch of one engine and of no Ray actor, which looks twenty times a second."""
    monkeypatch.setattr(watch, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(watch, "NOTICE_SECONDS", 0.05)
    monkeypatch.setattr(watch, "alive_nodes", dict)
    monkeypatch.setattr(kind, "_actors_of", lambda self, trainer: {})
    replicas = [SimpleNamespace(server_address=address)]
    trainer = SimpleNamespace(llm_server_manager=SimpleNamespace(get_replicas=lambda: replicas))
    return kind(trainer) if kind is Watch else QueueWatch(trainer, None)


@KINDS
def test_a_trainer_that_waits_is_interrupted_with_the_reason(
    kind: type[Watch], dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, said = time.monotonic(), rf"rollout engine 0 \({dead}\) is dead: .*Connection refused"
    with pytest.raises(WorkerFailureError, match=said), watching(kind, dead, monkeypatch):
        time.sleep(30)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        # Ray raises this of an actor that its memory monitor has killed, and it is no RayActorError.
        (OutOfMemoryError("21.9GB / 23.0GB"), "server 0 was killed by Ray's memory monitor: 21.9GB / 23.0GB"),
        (ActorDiedError(), "server 0 died: The actor died unexpectedly"),
        (ZeroDivisionError("of the watch"), "can no longer be watched: ZeroDivisionError: of the watch"),
    ],
)
def test_every_failure_of_a_call_to_an_actor_ends_the_run(
    failure: Exception, said: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(ping: object) -> None:
        raise failure

    killed: list[object] = []
    made = watching(Watch, address, monkeypatch)
    actor = SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda: "ping"))
    made._actors = {"server 0": actor}
    ray = SimpleNamespace(wait=lambda pings, timeout: (pings, []), get=get, kill=killed.append)
    monkeypatch.setattr(watch, "ray", ray)
    with pytest.raises(WorkerFailureError, match=re.escape(said)), made:
        time.sleep(30)
    assert killed == [actor]


@KINDS
def test_a_trainer_that_fails_before_the_watch_looks_ends_with_the_engines_death(
    kind: type[Watch], dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = watching(kind, dead, monkeypatch)
    monkeypatch.setattr(watch, "INTERVAL_SECONDS", 5.0)
    with pytest.raises(WorkerFailureError, match=r"rollout engine 0 .* is dead"), made:
        raise RuntimeError("no response has come")


@KINDS
def test_a_failure_of_another_kind_stays_what_it_is_and_the_handler_of_before_is_back(
    kind: type[Watch], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, made = signal.getsignal(signal.SIGUSR1), watching(kind, address, monkeypatch)
    with made:
        assert signal.getsignal(signal.SIGUSR1) != before
    with pytest.raises(RuntimeError, match="wrong"), watching(kind, address, monkeypatch):
        raise RuntimeError("wrong")
    assert signal.getsignal(signal.SIGUSR1) == before
