"""The command, killed while vLLM answers and again while it looks into models, loses nothing finished."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.evaluation.attacks.runner import ANSWERS, MODELS, PIECES
from tests.e2e.stack import Command
from tests.evaluation.attacks import conftest

ATTACKS = ("prefill", "quantise_4", "logit_lens", "uds", "linear_probe")
Start = Callable[..., Command]


@pytest.fixture
def start(world: Path, tmp_path: Path) -> Iterator[Start]:
    """start(name): the command as a process, with --out tmp_path / name / out; its cache is beside that."""
    started: list[Command] = []

    def call(name: str) -> Command:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        words = [
            *("-m", "recipe.rerule.evaluate", *conftest.words(world, folder / "out")),
            *("--attacks", *ATTACKS, "--keep-models", "--cache", f"{folder / 'cache'}"),
        ]
        started.append(Command(words, folder / f"log {len(started)}"))
        return started[-1]

    yield call
    for one in started:
        one.end()


def lines(file: Path) -> list[bytes]:
    """The whole lines of a file, none where it is missing."""
    return file.read_bytes().splitlines(keepends=True)[:-1] if file.is_file() else []


def kill(command: Command) -> None:
    """SIGKILL, which leaves no time to put anything in order."""
    assert command.process.poll() is None
    command.descendants()
    command.process.kill()
    command.process.wait()
    command.end()


def marks(folder: Path) -> set[tuple[int, int]]:
    """Which rounded models there are, and since when; moving one changes neither."""
    return {(mark.stat().st_ino, mark.stat().st_mtime_ns) for mark in folder.rglob("attack.json")}


def results(folder: Path) -> Any:
    return json.loads((folder / "out/attacks.json").read_text())


@pytest.mark.e2e
@pytest.mark.full
@pytest.mark.timeout(900)
def test_what_is_finished_outlasts_kills(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    answers, readings = folder / "cache" / ANSWERS, folder / "cache" / PIECES
    first = start("killed")
    first.wait_until(lambda: len(lines(answers / "refusing.jsonl")) > 1)
    kill(first)
    answered = (answers / "original.jsonl").read_bytes()
    changed = marks(folder / "cache" / MODELS)
    assert len(changed) == 3

    second = start("killed")
    second.wait_until(lambda: any(b"linear_probe" in line for line in lines(readings)))
    kill(second)
    assert (answers / "original.jsonl").read_bytes() == answered
    found = lines(readings)
    assert not (folder / "out").exists()

    third = start("killed")
    assert third.wait() == 0
    # Every answer is kept, so no engine starts; what was found is not found again.
    assert "starting vLLM" in second.output
    assert "starting vLLM" not in third.output
    again = lines(readings)
    assert again[: len(found)] == found
    assert len({json.loads(line)["key"] for line in again}) == len(again)
    assert marks(folder / "out" / MODELS) == changed
    whole = start("whole")
    assert whole.wait() == 0
    assert results(folder) == results(tmp_path / "whole")
