"""Files, folders, JSON and error lines: all that commands read, write and say in one way.

- Errors and warnings are one line on stderr; an error ends the command with an exit code.
- JSON that others may have written is read strictly: nothing is guessed, and the reason names file and line.
- Writes of files are atomic and fsynced. A full disk is named with the path, the bytes needed and the room.
- Folders appear complete or not at all. One is replaced only where its marker names everything in it: a JSON
  file with `format`, `format_version` and `contents`, the relative path of every file of the folder.

A folder is written as a draft beside the one that it will replace:

    .NAME.draft-XXXX/owner.json   {"format", "format_version", "target", "host"}; locked by its process
    .NAME.draft-XXXX/draft/       what will take the place of NAME
    .NAME.draft-XXXX/former/      what was at NAME, where the file system cannot exchange the two in one step

It needs the standard library alone, so that every room may import it at no cost.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import platform
import re
import resource
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.rerule import process

# ---- errors and warnings ----


@contextlib.contextmanager
def one_line(*kinds: type[Exception], code: int) -> Iterator[None]:
    """Turn an exception of `kinds` into `error: <line>` on stderr and exit code `code`.

    What is raised after a signal is its consequence and passes: `process.stoppable` has the line then.
    """
    try:
        yield
    except kinds as error:
        if process.signal_received():
            raise
        sys.exit(fail(error, code))


def fail(error: BaseException, code: int) -> int:
    """Print `error: <line>` on stderr; the exit code, for `main` to return.

    Raises BrokenPipeError: `error` itself, where nobody reads stdout any more; `process.stoppable` ends then.
    """
    if process.reader_gone(error):
        raise error
    print(f"error: {describe(error)}", file=sys.stderr, flush=True)
    return code


def warn(text: str) -> None:
    """Print `warning: <text>` as one line on stderr; the command goes on and its exit code is unaffected."""
    print(f"warning: {' '.join(text.split())}", file=sys.stderr, flush=True)


_DRAFT_PATH = re.compile(r"(^|[\s/'\"])\.([^\s/]+)\.draft-[0-9a-f]{8}/draft(?![^\s/'\":,;)])")


def describe(error: BaseException) -> str:
    """One line for an exception: the cause's own message where a remote worker wrapped it.

    A draft in the message is called by the name of the folder that it becomes.
    """
    # Ray wraps a worker's exception and keeps it in `cause`, once for each process it passed.
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause
    line = " ".join(part.strip() for part in _message(error).splitlines() if part.strip())
    return _DRAFT_PATH.sub(r"\1\2", line) or type(error).__name__


def _message(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:  # without the system's number for it
        names = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        reason = error.strerror[0].lower() + error.strerror[1:]
        return f"{names}: {reason}" if names else reason
    # An error that Ray rebuilt repeats its message once for each process it passed.
    text = str(error.args[0]) if error.args and len(set(map(str, error.args))) == 1 else str(error)
    module = type(error).__module__
    if module.startswith(("hydra", "omegaconf")):  # the first line names the key; internals follow
        unknown = " No such setting: see docs/configuration.md, or `--cfg job` for every key."
        return text.split("\n")[0] + (unknown if "Could not override" in str(error) else "")
    if module.startswith(("ray", "recipe")) or isinstance(error, ValueError):
        return text
    return f"{type(error).__name__}: {text}"


# ---- JSON ----

MOST_LEVELS = 60
"""Nested objects and lists, the outermost counted: more would exhaust the stack of what reads them."""

_HALF_OF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class RepeatedKeyError(ValueError):
    """An object has `key` twice, of which Python would keep the last."""

    def __init__(self, key: str) -> None:
        super().__init__(f"has the key {key if len(key) <= 40 else key[:40] + '...'!r} twice in one object")
        self.key = key


class _ConstantError(ValueError):
    """NaN or Infinity, which Python alone reads."""


def unique_keys(pairs: list[tuple[str, Any]]) -> Any:
    """The object of these keys and values. Raises RepeatedKeyError where a key is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise RepeatedKeyError(next(name for name in names if names.count(name) > 1))
    return found


def parse_json(
    text: str | bytes, *, nan: bool = False, objects: Callable[[list[tuple[str, Any]]], Any] = unique_keys
) -> Any:
    """The value in a JSON text.

    Args:
        nan: whether NaN and Infinity, which are not JSON, are read as Python writes them.
        objects: what is made of an object's keys and values.

    Raises:
        ValueError: what is wrong, to be read after "FILE ": "is cut off in line 3", "is nested too deeply".
    """

    def refuse(name: str) -> Any:
        raise _ConstantError(f"holds {name}, which is no number of JSON")

    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(decoded, object_pairs_hook=objects, parse_constant=None if nan else refuse)
    except UnicodeDecodeError as error:
        raise ValueError(f"is not text in UTF-8 (byte {error.start + 1})") from None
    except json.JSONDecodeError as error:
        raise ValueError(_syntax(error)) from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except (RepeatedKeyError, _ConstantError) as error:
        raise ValueError(str(error)) from None
    except ValueError:  # the interpreter's limit for whole numbers
        raise ValueError("holds a number of too many digits") from None
    _check_levels(value)
    if _HALF_OF_A_PAIR.search(decoded):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("holds half of a surrogate pair, which is no character") from None
    return value


def _syntax(error: json.JSONDecodeError) -> str:
    if not error.doc.strip():
        return "is empty"
    # A text that stops in a string, number or word is complained of where that begins or before its end.
    rest = "" if error.msg.startswith("Unterminated string") else error.doc[error.pos :]
    if error.pos and error.msg != "Extra data" and re.fullmatch(r"[\w.+-]*\s*", rest):
        return f"is not complete JSON: it is cut off in line {error.lineno}"
    return f"is not JSON: {error.msg[0].lower()}{error.msg[1:]} in line {error.lineno}"


def is_finite(value: Any) -> bool:
    """Whether a value is a number that a float holds; true and false are none."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def _check_levels(value: Any) -> None:
    """Raises ValueError where objects and lists are nested deeper than MOST_LEVELS."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MOST_LEVELS):
        inner = [item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer)]
        level = [item for item in inner if isinstance(item, dict | list)]
        if not level:
            return
    raise ValueError("is nested too deeply")


def read_json(file: Path, *, nan: bool = False) -> Any:
    """The value in a JSON file. Raises ValueError, one line that names the file, and OSError."""
    if not file.is_file():
        raise ValueError(f"{file} {'is a folder, not a file' if file.is_dir() else 'does not exist'}")
    try:
        return parse_json(file.read_bytes(), nan=nan)
    except ValueError as error:
        raise ValueError(f"{file} {error}") from None


def read_record(file: Path) -> dict[str, Any]:
    """The JSON object in a file; {} where it is a link, no JSON or no object."""
    return {} if file.is_symlink() else _object(file.read_bytes()) or {}


def _object(text: bytes) -> dict[str, Any] | None:
    """The JSON object of a text; None where the text is torn or something else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def json_lines(records: Iterable[Mapping[str, Any]], *, nan: bool = False) -> str:
    """A JSON object a line.

    Args:
        nan: whether NaN and Infinity, which are not JSON, are written as Python reads them.

    Raises ValueError: NaN or Infinity, without `nan`.
    """
    return "".join(json.dumps(record, ensure_ascii=False, allow_nan=nan) + "\n" for record in records)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append a JSON object to a file of JSON lines; NaN is written as Python reads it. Raises OSError."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json_lines([record], nan=True))


KEPT_SUFFIX = ".jsonl"
"""How the name of a file of kept records ends: JSON lines that are appended as they come."""


def kept_line(record: Mapping[str, Any]) -> bytes:
    """The line that keeps a record. Raises ValueError for NaN and Infinity, which are not JSON."""
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def kept_records(content: bytes) -> Iterator[dict[str, Any]]:
    """The records of a file's content, without lines that are torn or foreign.

    A last one whose line break alone is missing is whole.
    """
    # Split at line feeds alone: a JSON text may hold U+2028 and the like as they are.
    return (record for line in content.split(b"\n") if (record := _object(line)) is not None)


def drop_torn_line(path: Path) -> None:
    """Cut off what a kill left of a last line, to which the next one would be appended. Raises OSError."""
    content = path.read_bytes() if path.is_file() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


# ---- files ----

DRAFT_SUFFIX = ".tmp"
"""What `replacing` adds to a file's name; a kill may leave such a file behind."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path`; the file that the block writes there takes the place of `path` at its end.

    Whoever reads `path` finds the old or the new content, whole, also after a power cut.

    Raises OSError: the disk refused; the file is as it was, and no draft is left.
    """
    draft = path.with_name(path.name + DRAFT_SUFFIX)
    try:
        yield draft
        flush(draft)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    flush(path.parent)


def write(path: Path, data: bytes) -> None:
    """Put `data` in place of what the file held, as `replacing` does. Raises OSError."""
    with replacing(path) as draft:
        draft.write_bytes(data)


def flush(path: Path) -> None:
    """Put a file's contents, or a folder's entries, on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """`flush` a folder and all that is below it, whichever process wrote it. Raises OSError."""
    for path in folder.rglob("*"):
        flush(path)
    flush(folder)


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of the file's bytes."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; 0 where nothing is there."""
    if path.is_file():
        return path.stat().st_size
    total = 0
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):  # another process may be removing it
            total += file.lstat().st_size if file.is_file() else 0
    return total


# ---- a full disk ----

_FULL_BYTES = 2**20
"""A file system with less free space than this counts as full."""
_REFUSALS = {
    "no space left on device": "full",
    "os error 28": "full",  # safetensors
    "disk quota exceeded": "quota",
    "file too large": "limit",
    "unexpected pos": "torch",
    "pytorchstreamwriter failed": "torch",
    "file write failed": "torch",
}
"""What the system and libraries say, in small letters, and which kind of refusal it is. torch says the same
whatever the reason."""


class DiskFullError(OSError):
    """A file could not be written for want of room; the message is one line and says what to do."""


@contextlib.contextmanager
def naming_full_disk(
    path: str | Path, written: str | Path | None = None, needed: Callable[[], int | None] = lambda: None
) -> Iterator[None]:
    """Where the block fails for want of room on a disk, say so of `path`, the file or folder it writes.

    Args:
        path: as the user knows it.
        written: where its parts are while it is written; `path` itself where None.
        needed: bytes that it will have; asked for after the failure. None: not known.

    Raises DiskFullError: in place of what the block raised.
    """
    try:
        yield
    except DiskFullError:
        raise
    except Exception as error:
        kind = _refusal(error)
        reason = _lack_of_room(kind, Path(path), Path(written or path), needed()) if kind else None
        if reason is None:
            raise
        raise DiskFullError(reason) from error


def _refusal(error: BaseException) -> str | None:
    """Which kind of refusal is behind an exception or what caused it, also in another process."""
    chain: list[BaseException] = []
    pending: list[Any] = [error]
    while pending:
        one = pending.pop()
        if isinstance(one, BaseException) and not any(one is other for other in chain):
            chain.append(one)
            pending += [one.__cause__, one.__context__, getattr(one, "cause", None)]  # the last one is Ray's
    text = " ".join(map(str, chain)).lower()
    return next((kind for words, kind in _REFUSALS.items() if words in text), None)


def _lack_of_room(kind: str, path: Path, written: Path, needed: int | None) -> str | None:
    """One line about the failed write of `path`; None where room was not what it lacked."""
    done, free = size(written), _free(written)
    if kind == "torch":
        limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
        short = free < max(_FULL_BYTES, (needed or 0) - done)
        kind = "full" if short else "limit" if limited else ""
    if kind == "full" and free >= _FULL_BYTES:
        for place in (Path("/dev/shm"), Path(tempfile.gettempdir())):
            if place.is_dir() and _free(place) < _FULL_BYTES:
                room = f"{_free(place):,} bytes are free there"
                return f"the disk of {place} is full: {room}; {path} is not complete"
    need = f"{needed:,} bytes" if needed else f"more than {done:,} bytes"
    return {
        "full": f"the disk is full: {path} needs {need}, and there was room for {done + free:,}",
        "quota": f"the disk quota is used up: {path} needs {need}, and {done:,} could be written",
        "limit": f"a file of {path} would be larger than this process may write (ulimit -f); it needs {need}",
    }.get(kind)


def _free(path: Path) -> int:
    """Bytes free for this user on the file system of `path`, or of its nearest folder that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free if path.exists() else 0


# ---- whose a folder is ----

FORMAT_VERSION = 2


class OwnershipError(ValueError):
    """A folder is not ours to replace; the message is one line and says what to do."""


@dataclass(frozen=True)
class Kind:
    """A kind of folder that commands write.

    Attributes:
        format: the marker's `format`, such as "rerule/data".
        marker: name of the marker.
    """

    format: str
    marker: str


DATA = Kind("rerule/data", "manifest.json")
"""The folders that data_prep writes."""


def stamp(kind: Kind, files: Collection[str]) -> dict[str, Any]:
    """The keys by which a marker says that its folder is ours and holds `files`, the marker included."""
    contents = sorted({*files, kind.marker})
    return {"format": kind.format, "format_version": FORMAT_VERSION, "contents": contents}


def stamp_folder(kind: Kind, folder: Path) -> dict[str, Any]:
    """`stamp` of what is in a folder."""
    return stamp(kind, list(paths_in(folder)))


def paths_in(folder: Path) -> Iterator[str]:
    """Relative paths of all that is in a folder: files, links (which are not followed) and empty folders.

    An empty folder's path ends in "/". Raises OSError for a folder that cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    for parent, folders, files in os.walk(folder, onerror=refuse):
        place = Path(parent).relative_to(folder)
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        yield from sorted((place / name).as_posix() for name in [*files, *links])
        if not folders and not files and place != Path():
            yield f"{place.as_posix()}/"


def check_owned(folder: Path, kind: Kind) -> list[str]:
    """The relative paths of all files of a folder, every one of which its marker names.

    Raises OwnershipError: the folder has no marker of this kind, or holds something its marker does not name.
    """
    found = list(paths_in(folder))
    if not found:
        return []
    if kind.marker not in found:
        raise OwnershipError(f"{folder} has no {kind.marker}, so it is not replaced: give another folder")
    record = read_record(folder / kind.marker)
    written, version, contents = (record.get(key) for key in ("format", "format_version", "contents"))
    if written is not None and written != kind.format:
        raise OwnershipError(
            f"{folder} is of format {str(written)[:40]!r} by its {kind.marker}, and this command replaces "
            f"only {kind.format}: give another folder"
        )
    if not written or version != FORMAT_VERSION or not isinstance(contents, list):
        raise OwnershipError(
            f"{folder / kind.marker} was not written by this command, so {folder} is not replaced: give "
            "another folder"
        )
    named = {kind.marker, *(path for path in contents if isinstance(path, str))}
    for path in found:
        if path not in named:
            raise OwnershipError(
                f"{folder / path} is not named in {kind.marker}, so {folder} is not replaced: move that file "
                "away, or give another folder"
            )
    return found


def remove_owned(folder: Path, paths: Collection[str]) -> None:
    """Remove these files of a folder, and every folder that is empty then.

    Raises OwnershipError: something else is in the folder, which stays.
    """
    for path in paths:
        if not path.endswith("/"):
            (folder / path).unlink(missing_ok=True)
    for parent, _, _ in os.walk(folder, topdown=False):
        if not os.listdir(parent):
            os.rmdir(parent)
    if folder.exists():
        raise OwnershipError(f"{folder} holds files that appeared while it was replaced; they are kept there")


# ---- folders that appear complete ----

DRAFT, FORMER, _OWNER = "draft", "former", "owner.json"
_LONGEST = 200
"""Characters of a target's name in its draft's: most file systems take 255 bytes."""
_HERE, _EXCHANGE = -100, 2  # Linux: AT_FDCWD, RENAME_EXCHANGE


def check_may_replace(place: Path, overwrite: bool, instead: str = "folder") -> None:
    """Refuses to replace what is at `place` unless it was asked to.

    Args:
        instead: what to give another one of.

    Raises ValueError: `overwrite` is false.
    """
    if not overwrite:
        raise ValueError(f"{place} exists already: give another {instead}, or --overwrite to replace it")


def check_writable(target: Path, overwrite: bool, kind: Kind = DATA) -> None:
    """Refuses to replace what was not asked to be replaced, or was not written by this program.

    A folder that an interrupted command had moved away is put back first (`recover`).

    Raises ValueError: `target` exists and `overwrite` is false; or it is neither an empty folder nor one of
    `kind` that holds what its marker names and nothing else; or it is a link that leads nowhere.
    """
    place = _followed(target)
    recover(place)
    if not place.exists():
        return
    check_may_replace(target, overwrite)
    if not place.is_dir():
        raise ValueError(f"{target} has no {kind.marker}, so it is not replaced: give another folder")
    check_owned(target, kind)


@contextlib.contextmanager
def new_folder(target: Path, overwrite: bool, kind: Kind = DATA) -> Iterator[Path]:
    """Yields a draft folder beside `target`, which takes its place when the block ends without an error.

    The block writes the marker of `kind`, without which the folder will not be replaced by a later one. Where
    `target` is a link to a folder, the folder it leads to is replaced and the link stays.

    After an error nothing is left and `target` is as it was. Raises ValueError as `check_writable` does, and
    DiskFullError where there is no room.
    """
    check_writable(target, overwrite, kind)
    place = _followed(target)
    with draft_folder(place) as scratch, naming_full_disk(target, scratch):
        yield scratch / DRAFT
        check_writable(target, overwrite, kind)
        put_in_place(scratch, scratch / DRAFT, place, check_owned(place, kind) if place.exists() else [])


def _followed(target: Path) -> Path:
    """Where the folder itself is: a link's end. Raises ValueError for a link that leads nowhere."""
    if target.is_symlink() and not target.exists():
        raise ValueError(f"{target} is a link that leads nowhere: give a folder")
    return target.resolve() if target.is_symlink() else target


def put_in_place(scratch: Path, draft: Path, target: Path, owned: Sequence[str]) -> None:
    """Let a draft take the place of `target`, and remove what was there.

    Args:
        scratch: folder of `draft_folder`, in which the draft is.
        owned: the relative paths of all files of `target`.

    Raises OwnershipError: something else appeared in the old folder meanwhile; the new one is in place, and
    the message says where that file is.
    """
    former = scratch / FORMER
    if not target.exists():
        draft.rename(target)
        return
    if exchange(draft, target):
        former = draft
    else:
        target.rename(former)
        draft.rename(target)
    try:
        remove_owned(former, owned)
    except OwnershipError:
        (scratch / _OWNER).unlink(missing_ok=True)  # without its owner it stays, for its user to look into
        raise


def exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


@contextlib.contextmanager
def draft_folder(target: Path) -> Iterator[Path]:
    """A folder with an empty DRAFT in it beside `target`, removed at the end with what it holds.

    What an earlier process left there for the same target, when it was killed, is removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    recover(target)
    folder = target.with_name(f"{_prefix(target)}{uuid.uuid4().hex[:8]}")
    folder.mkdir(mode=0o700)
    try:
        with open(folder / _OWNER, "x", encoding="utf-8") as file:
            with contextlib.suppress(OSError):  # without locks no other process takes this one for dead
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Written under the lock, which ends with this process: an owner that is not locked is dead.
            file.write(json.dumps(_owner(target)))
            file.flush()
            (folder / DRAFT).mkdir()
            yield folder
            _remove_drafts(folder)
    except BaseException:
        _finish(folder, target)
        raise


def recover(target: Path) -> None:
    """Put back what a killed process had moved away from `target`, and remove the drafts of such processes.

    Left alone is every folder whose process may be alive, runs on another machine, or is none of ours.
    """
    beside = sorted(target.parent.iterdir()) if target.parent.is_dir() else []
    for folder in beside:
        if folder.name.startswith(_prefix(target)) and _is_abandoned(folder, target):
            _finish(folder, target)


def _prefix(target: Path) -> str:
    return f".{target.name[:_LONGEST]}.draft-"


def _owner(target: Path) -> dict[str, Any]:
    return {"format": "rerule/draft", "format_version": 1, "target": target.name, "host": platform.node()}


def _is_abandoned(folder: Path, target: Path) -> bool:
    owner = folder / _OWNER
    if folder.is_symlink() or not owner.is_file() or read_record(owner) != _owner(target):
        return False
    if {path.name for path in folder.iterdir()} - {_OWNER, DRAFT, FORMER}:
        return False
    try:
        with owner.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _finish(folder: Path, target: Path) -> None:
    """Put back what was moved away from `target`, and remove the rest: after a kill or an error."""
    former = folder / FORMER
    if former.exists() and (folder / DRAFT).exists():
        if os.path.lexists(target):
            warn(f"{former} is what a command that ended early found at {target}")
            return
        former.rename(target)
        warn(f"{target} is back, which a command that ended early had moved away")
    _remove_drafts(folder)


def _remove_drafts(folder: Path) -> None:
    """Remove a folder for drafts, unless its owner was taken away so that it stays."""
    if (folder / _OWNER).exists() or not any(folder.iterdir()):
        for name in (DRAFT, FORMER):
            shutil.rmtree(folder / name, ignore_errors=True)
        # The owner goes last: until then the next command knows what is left here.
        (folder / _OWNER).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()


# ---- outputs apart from inputs ----

Input = tuple[str, Path]
"""The option that names an input, and the input."""


def check_apart(out: Path, *inputs: Input, runs: Sequence[Input] = (), written: str = "--out") -> None:
    """Refuse an output that is an input, holds one, or lies in one. Links are followed.

    Args:
        out: what will be written, the value of the option `written`.
        inputs: what is read; what is not there, such as a name on the Hub, is left out by the caller.
        runs: folders of runs, in which the output may lie.

    Raises ValueError: naming both.
    """
    place = out.resolve()
    for option, path in [*inputs, *runs]:
        found = path.resolve()
        if found == place:
            raise ValueError(f"{written} is {out}, which {option} reads: give another {written}")
        if place in found.parents:
            raise ValueError(
                f"{written} is {out}, in which {option} {path} lies: give another {written}, or move that "
                "file away"
            )
    for option, path in inputs:
        if path.resolve() in place.parents:
            raise ValueError(
                f"{written} is {out}, which lies in what {option} reads, {path}: give another {written}"
            )


def existing(*inputs: tuple[str, str | Path | None]) -> list[Input]:
    """The inputs that exist on this machine; None and names on the Hub are left out."""
    return [(option, Path(path)) for option, path in inputs if path is not None and Path(path).exists()]
