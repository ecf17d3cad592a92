"""What finished attacks found, on disk as it comes, so that a command that was killed goes on.

FOLDER/readings.jsonl     a line for each finished piece of work: its key, readings and seconds
FOLDER/answers/           what models answered (`engine.answers`)
FOLDER/models/KEY/        changed models that are not asked yet
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.rerule import io
from recipe.rerule.evaluation.attacks.material import Readings
from recipe.rerule.evaluation.engine.answers import check_store, discard
from recipe.rerule.io import kept_line, kept_records

READINGS, ANSWERS, MODELS = "readings.jsonl", "answers", "models"


@dataclass(frozen=True)
class Finished:
    """What one piece of work found, and the seconds that it took."""

    readings: Readings
    seconds: float


class KeptReadings:
    """The finished pieces by key."""

    def __init__(self, folder: Path) -> None:
        """Read what an earlier command left; a line that a kill has torn is dropped."""
        self._path = folder / READINGS
        io.drop_torn_line(self._path)
        content = self._path.read_bytes() if self._path.is_file() else b""
        self._found = {record["key"]: _finished(record) for record in kept_records(content)}

    def get(self, key: str) -> Finished | None:
        """What the piece found; None where it is not finished."""
        return self._found.get(key)

    def add(self, key: str, label: str, finished: Finished) -> None:
        """Append a piece, which outlasts this process from here on. Raises OSError."""
        record = {
            "key": key,
            "label": label,
            "seconds": finished.seconds,
            "readings": {
                variant: {
                    name: [[unit, value] for unit, value in values.items()]
                    for name, values in reading.items()
                }
                for variant, reading in finished.readings.items()
            },
        }
        with self._path.open("ab") as file:
            file.write(kept_line(record))
        self._found[key] = finished


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other commands out of it while the block runs.

    Raises:
        ValueError: it holds something else, or another command is at work there.
    """
    check_kept(folder)
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"{folder}: another command is at work there; wait for it, or end it") from None


def check_kept(folder: Path) -> None:
    """Refuse a folder that is none, or holds something else than what is kept here. Raises ValueError."""
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
        raise ValueError(f"{folder}: finished attacks cannot be kept there: it is no folder")
    foreign = sorted({path.name for path in folder.glob("*")} - {READINGS, ANSWERS, MODELS})
    if foreign:
        raise ValueError(
            f"{folder / foreign[0]} is no finished attack, and {folder} is where they are kept: move it "
            "away, or give another folder"
        )
    check_store(folder / ANSWERS)


def remove(folder: Path) -> None:
    """Delete what is kept in the folder, and the folder where nothing else is in it."""
    discard(folder / ANSWERS)
    shutil.rmtree(folder / MODELS, ignore_errors=True)
    (folder / READINGS).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _finished(record: dict[str, Any]) -> Finished:
    readings = {
        variant: {name: {unit: value for unit, value in values} for name, values in reading.items()}
        for variant, reading in record["readings"].items()
    }
    return Finished(readings, record["seconds"])
