"""What the model has answered, on disk.

A folder of JSON-lines files: each process appends to one of its own, and reads all of them when it starts. So
no process can spoil another's file, on a network file system either; a kill can only tear the last line of a
file to which nobody appends any more; and ten thousand answers are a few files. A line that is not a whole
record counts for nothing. A line is handed to the operating system before the next call is waited for: a
killed process loses none, a power cut at most the last seconds.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from data_prep.generate.kept import SUFFIX, line_of, records_of
from data_prep.generate.task import Answer


class Cache:
    """Answers by key, and what was wrong with answers of no use. Nothing is written before the first `put_*`.

    A context manager: leaving it closes the file. Raises OSError where the folder cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._answers: dict[str, Answer] = {}
        self._unfit: dict[str, dict[int, str]] = {}
        self._file: BinaryIO | None = None
        for path in sorted(folder.glob(f"*{SUFFIX}")):  # the oldest first: a later answer replaces it
            for record in records_of(path.read_bytes()):
                self._remember(record)

    def __enter__(self) -> Cache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def answer(self, key: str) -> Answer | None:
        """The answer kept under `key`."""
        return self._answers.get(key)

    def unfit(self, key: str) -> dict[int, str]:
        """What is wrong with the draws of `key` that were of no use."""
        return self._unfit.get(key, {})

    def put_answer(self, key: str, answer: Answer) -> None:
        """Keeps a checked answer."""
        self._put({"key": key, "answer": answer})

    def put_unfit(self, key: str, draw: int, problem: str) -> None:
        """Keeps that this draw was of no use."""
        self._put({"key": key, "draw": draw, "unfit": problem})

    def _put(self, record: dict[str, Any]) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"{time.time_ns():020d}-{uuid.uuid4().hex}{SUFFIX}"
            self._file = open(self._folder / name, "xb")  # noqa: SIM115 (closed by __exit__)
        self._file.write(line_of(record))
        self._file.flush()
        self._remember(record)

    def _remember(self, record: dict[str, Any]) -> None:
        match record:
            case {"key": str(key), "answer": dict(answer)}:
                self._answers[key] = answer
            case {"key": str(key), "draw": int(draw), "unfit": str(problem)}:
                self._unfit.setdefault(key, {})[draw] = problem
