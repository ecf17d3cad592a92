"""A micro world, and commands that end with the test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from data_prep.world.build import build
from tests.e2e.stack import Command
from tests.made_worlds import MICRO


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
    """The files of MICRO."""
    folder = tmp_path_factory.mktemp("world") / "micro"
    build(MICRO, folder, overwrite=False)
    return folder
