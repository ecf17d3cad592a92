"""Whose a run folder is: one run at a time writes into its own, and only what runs write is removed.

<run>/run.json    {"format": "rerule/run", "format_version": 2, "stage": 1 | 2 | "unlearn"}; written when the
                  run starts; "identity" says what the run was started with
<run>/run.lock    locked by the run that writes (flock): the lock ends with its process, however that ends,
                  and with the launcher of its ranks. Between machines it holds where the file system passes
                  it on, as NFS does from version 4 on
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from recipe.rerule import io
from recipe.rerule.io import paths_in, read_record, remove_owned

MARKER, LOCK = "run.json", "run.lock"
FORMAT, FORMAT_VERSION = "rerule/run", 2
Stage = Literal[1, 2, "unlearn"]
_COMPLETE = "complete.json"
_WRITTEN = re.compile(
    r"run\.(json|lock)|config\.yaml|records|model|lora_adapter|latest_checkpointed_iteration\.txt(\.tmp)?|"
    r"best\.json(\.tmp)?|global_step_\d+(\.removed)?"
)
"""Names in a run folder that a run may change or remove."""
_HUGGING_FACE = r"[\w.-]+\.((json|safetensors)(\.tmp)?|jinja|model|py)|(vocab|merges)\.txt"
_VERL = r"(fsdp_config|lora_train_meta)\.json|(model|optim|extra_state)_world_size_\d+_rank_\d+\.pt"
_OF_CHECKPOINT = (
    r"complete\.json(\.tmp)?|data(_\d+)?\.pt|retain_weight\.txt|"
    rf"((actor|critic)/)?((huggingface|lora_adapter)/({_HUGGING_FACE})?|{_VERL})|"
    r"(actor|critic|replay)/|replay/(state\.json|groups-[0-9a-f]+\.safetensors)(\.tmp)?"
)
_OF_RUN = (
    r"run\.(json(\.tmp)?|lock)|config\.yaml|(latest_checkpointed_iteration\.txt|best\.json)(\.tmp)?|records/|"
    r"records/(metrics\w*|prompts|validation|replay|signal)(\.\d+)?\.jsonl|records/own_answers\.parquet|"
    r"records/(rollouts|validation)/(\d+\.jsonl)?|"
    rf"lora_adapter/({_HUGGING_FACE})?|"  # a run that was killed before it moved its model too
    rf"global_step_\d+(\.removed)?/({_OF_CHECKPOINT})"
)


_OF_START = rf"{re.escape(MARKER)}(\.tmp)?|{re.escape(LOCK)}|\.hydra/((config|hydra|overrides)\.yaml)?"
_EMPTY_AT_START = r"records/((metrics|metrics_at_save|prompts|replay)(\.\d+)?\.jsonl|(rollouts|validation)/)?"


def check(folder: str | Path, stage: Stage) -> None:
    """Refuse a run folder in which a run would change or remove what no run of this stage wrote.

    Files that a run does not touch may be there. A folder that does not exist is free.

    Raises ValueError: naming the folder and the first such file.
    """
    folder = Path(folder)
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    taken = [name for name in names if _WRITTEN.fullmatch(name)]
    if taken and _stage_of(folder) != stage:
        raise ValueError(
            f"trainer.default_local_dir is {folder}, and the {taken[0]} there is not of a run of "
            f"{_named(stage)}, which would write it; choose another folder"
        )
    if stage != 2 and os.path.lexists(folder / "model"):
        raise ValueError(
            f"trainer.default_local_dir is {folder}, which already holds the model of a finished "
            f"{_named(stage)}; choose another folder"
        )


def check_writable(folder: str | None, key: str = "trainer.default_local_dir") -> None:
    """Refuse a run folder that is a file or that nothing can be written to. Leaves nothing behind.

    A temporary folder is made and removed: permissions alone do not tell on read-only or full file systems.

    Raises ValueError: naming `key`, the folder and the reason.
    """
    if not folder or not folder.strip():
        raise ValueError(f"{key} is empty; give the folder of the run")
    place = Path(folder).absolute()
    new = []
    while not os.path.lexists(place):
        new.append(place.name)
        place = place.parent
    if not place.is_dir():
        kind = "a file" if place.exists() else "a link to nothing"
        raise ValueError(f"{key} is {folder}, but {place} is {kind}; give another folder")
    if any(len(os.fsencode(name)) > os.pathconf(place, "PC_NAME_MAX") for name in new):
        raise ValueError(f"{key} is {folder}, but no folder can have this name; give a shorter one")
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=".rerule-"):
            pass
    except OSError as error:
        raise ValueError(
            f"{key} is {folder}, but nothing can be written to {place} ({error.strerror}); give another"
        ) from None


def check_dumps(key: str, folder: str | Path, resumed: bool) -> None:
    """Refuse a folder in which verl would write STEP.jsonl over files of somebody else.

    Args:
        key: the setting that names the folder, such as "trainer.validation_data_dir".
        resumed: whether files STEP.jsonl may be there, of the run that goes on.

    Raises ValueError: naming the key, the folder and the first such file.
    """
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if not (resumed and re.fullmatch(r"\d+\.jsonl", name)):
            raise ValueError(
                f"{key} is {folder}, which holds {name} already; choose a folder that is empty or missing"
            )


def begin(folder: str | Path, stage: Stage) -> None:
    """Say that the folder, made where it is missing, is of a run of this stage. Raises OSError."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MARKER).exists():
        record = {"format": FORMAT, "format_version": FORMAT_VERSION, "stage": stage}
        io.write(folder / MARKER, json.dumps(record).encode() + b"\n")


def keep_identity(folder: str | Path, identity: Mapping[str, Any]) -> None:
    """Say what the run was started with, in a folder that `begin` has made. Raises OSError.

    A file that says so already stays as it is: a finished run that is started again changes nothing.
    """
    marker = Path(folder) / MARKER
    if identity_of(folder) != identity:
        io.write(marker, json.dumps({**read_record(marker), "identity": dict(identity)}).encode() + b"\n")


def identity_of(folder: str | Path) -> dict[str, Any]:
    """What the run was started with, as `keep_identity` was told; {} where nobody said it."""
    marker = Path(folder) / MARKER
    found = read_record(marker).get("identity") if marker.is_file() else None
    return found if isinstance(found, dict) else {}


def resolved(path: str | None) -> str | None:
    """A folder by its absolute path, a name on the Hub as it is."""
    folder = Path(path or "").expanduser()
    return str(folder.resolve()) if path and folder.is_dir() else path


def is_begun(folder: str | Path) -> bool:
    """Whether the folder holds more than a run writes before its first step.

    A run that failed by then left its marker and lock, its configuration, what Hydra keeps of that, and
    records without a word: another run may begin there.
    """
    folder = Path(folder)
    return folder.is_dir() and not all(_is_of_start(folder, path) for path in paths_in(folder))


def _is_of_start(folder: Path, path: str) -> bool:
    if path == "config.yaml":
        try:
            return not (folder / path).is_symlink() and bool(read_config(folder / path))
        except ValueError:
            return False
    if re.fullmatch(_EMPTY_AT_START, path):
        return path.endswith("/") or (folder / path).lstat().st_size == 0  # a link has a size
    return re.fullmatch(_OF_START, path) is not None


def foreign_to_checkpoint(folder: Path) -> Path | None:
    """The first file of a folder global_step_N that no run wrote there; None where there is none.

    Where complete.json names the files of the checkpoint, every other one is foreign.
    """
    if folder.is_symlink() or not folder.is_dir():
        return folder
    named = read_record(folder / _COMPLETE).get("files") if (folder / _COMPLETE).is_file() else None
    own = {*named, _COMPLETE, f"{_COMPLETE}.tmp"} if isinstance(named, dict) else None
    for path in paths_in(folder):
        known = path in own if own is not None else re.fullmatch(_OF_CHECKPOINT, path)
        if not known and not path.endswith("/"):  # a removal that was interrupted leaves empty folders
            return folder / path
    return None


def remove_unfinished(folder: Path) -> None:
    """Remove a run folder that a killed run left without its result.

    Raises:
        ValueError: no run of ours began it, or something is there that no run writes; nothing is removed.
        BusyError: a run still writes there, as one does whose command alone was killed.
        OSError: it cannot be removed.
    """
    if folder.is_symlink() or _stage_of(folder) is None:
        raise ValueError(
            f"{folder} is unfinished, and no {MARKER} says that a run began it, so it is kept: move it away"
        )
    with held(folder, "--out"):
        found = list(paths_in(folder))
        for path in found:
            if not re.fullmatch(_OF_RUN, path):
                raise ValueError(
                    f"{folder} is unfinished, and no run wrote {folder / path}, so it is kept: move that "
                    "file away"
                )
        remove_owned(folder, found)


class BusyError(ValueError):
    """Another run is writing into the folder; the message is one line and says which."""


@contextlib.contextmanager
def held(run_folder: str | Path, key: str = "trainer.default_local_dir") -> Iterator[int]:
    """Make the folder where it is missing, and keep other runs out of it while the block runs.

    Gives the descriptor of the lock. A process that inherits it keeps other runs out as long as it lives.

    `key`: the setting or option that names the folder.

    Raises:
        BusyError: another run holds it; the message names its process and machine.
        OSError: the folder cannot be made or written to.
    """
    path = Path(run_folder) / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _open_locked(path, key)
    try:
        name_owner(descriptor, os.getpid())
        yield descriptor
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def name_owner(lock: int, pid: int) -> None:
    """Say in the lock's file which process other runs are to wait for."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {pid} on {socket.gethostname()}\n".encode(), 0)


def _open_locked(path: Path, key: str) -> int:
    """A descriptor of the file at `path`, locked; closing it, or the end of this process, frees the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):  # its owner may have removed it since we opened it
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        except BlockingIOError as error:
            owner = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise BusyError(
                f"{path.parent} is in use by another run ({owner}); wait for it or end it, or choose another "
                f"{key}"
            ) from error
        except OSError as error:
            reason = f"cannot be locked ({error.strerror}), so a second run in it would not be refused"
            io.warn(f"{path.parent} {reason}")
            return descriptor
        os.close(descriptor)


def _named(stage: Stage) -> str:
    return "recipe.rerule.unlearn" if stage == "unlearn" else f"stage {stage}"


def _stage_of(folder: Path) -> Stage | None:
    """The stage whose run began in the folder; None where no marker of this format says so."""
    marker = folder / MARKER
    record = read_record(marker) if marker.is_file() else {}
    ours = record.get("format") == FORMAT and record.get("format_version") == FORMAT_VERSION
    return record["stage"] if ours and record.get("stage") in get_args(Stage) else None


def read_config(file: Path) -> dict[str, Any]:
    """A run's configuration, {} where it kept none. Raises ValueError where the file is no YAML mapping."""
    if not file.is_file():
        return {}
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not YAML: {str(error).splitlines()[0]}") from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ValueError(f"{file} is not YAML that can be read ({type(error).__name__})") from error
    if not isinstance(config, dict):
        raise ValueError(f"{file} is no configuration of a run")
    return config
