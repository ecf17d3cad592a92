"""A run that is killed half way and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from data_prep.generate import Generated, generate
from tests.data_prep.generate.server import (
    MODEL,
    Call,
    ChatServer,
    answer_well,
    good_note,
    notes,
    small_endpoint,
)

ASK = Path(__file__).with_name("ask.py")
COUNT = 20
CONCURRENCY = 4  # of ask.py


def start(server: ChatServer, folder: Path) -> subprocess.Popen[bytes]:
    arguments = [server.url, MODEL, COUNT, folder / "cache", folder / "out.json"]
    return subprocess.Popen(
        [sys.executable, ASK, *map(str, arguments)],
        stderr=subprocess.DEVNULL,
        # A shell lets what it starts in the background ignore Ctrl-C, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(server: ChatServer, folder: Path) -> Generated:
    return generate(notes(COUNT), small_endpoint(server.url, MODEL), folder / "cache")


def kept(folder: Path) -> list[str]:
    """The lines of the cache."""
    return [line for path in folder.glob("cache/*") for line in path.read_text().splitlines(keepends=True)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGINT])
def test_no_finished_call_is_made_again(server: ChatServer, tmp_path: Path, way: signal.Signals) -> None:
    """The server answers 7 calls and leaves those after them waiting; then the run ends."""
    let_go = threading.Event()

    def wait(handler: BaseHTTPRequestHandler, call: Call) -> None:
        let_go.wait(60)

    server.script = lambda number, call: answer_well if number < 7 else wait
    process = start(server, tmp_path)
    wait_until(lambda: len(server.calls) == 7 + CONCURRENCY and len(kept(tmp_path)) == 7)
    process.send_signal(way)
    assert process.wait(30) != 0
    let_go.set()
    finished = server.prompts()[:7]

    server.calls.clear()
    server.script = lambda number, call: answer_well
    resumed = finish(server, tmp_path)
    assert sorted(server.prompts() + finished) == sorted(f"Write down {n}." for n in range(COUNT))
    assert (resumed.from_cache, resumed.calls) == (7, COUNT - 7)
    in_one_go = finish(server, tmp_path / "other")
    assert resumed.results == in_one_go.results == [good_note(number) for number in range(COUNT)]
    assert sorted(kept(tmp_path)) == sorted(kept(tmp_path / "other"))
