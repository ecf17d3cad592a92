"""A micro world, and commands that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.study.worlds import WORLDS
from data_prep.world.build import build
from tests.e2e.stack import Command


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """command(*arguments): start `python *arguments` in the project root."""
    started: list[Command] = []

    def start(*arguments: object) -> Command:
        started.append(Command([str(a) for a in arguments], tmp_path / f"log{len(started)}.txt"))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture(scope="session")
def micro_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world of nine people and a model of 0.2 M parameters that knows them somewhat."""
    folder = tmp_path_factory.mktemp("world") / "micro"
    build(WORLDS["micro"].config, folder, overwrite=False)
    return folder
