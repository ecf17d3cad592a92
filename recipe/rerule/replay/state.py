"""Replay state on disk: tensors as safetensors, the rest as JSON; reading it executes nothing.

A folder holds ``groups-<digest>.safetensors``, where a plane of a group is ``<place in the buffer>.<plane>``,
and ``state.json``, which names the digest. The tensors are written first and ``state.json`` last, each under
a temporary name, flushed and renamed, so the folder always holds the last complete state or none, also when
an older state is replaced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from .. import io
from .buffer import StoredGroup
from .group import RolloutGroup
from .replay import Replay, ReplayStateError

STATE_FILE = "state.json"
Run = Mapping[str, str | float]


class _Group(BaseModel, extra="forbid", strict=True):
    """What state.json holds of a ``StoredGroup``."""

    prompt_index: int
    side: str
    mode: str
    step: int
    reuse_count: int


class _Record(BaseModel, extra="forbid", strict=True):
    """What state.json holds; ``Replay.load_state_dict`` checks the values of rng, threshold and rules."""

    format_version: Literal[4]
    groups_sha256: str
    run: dict[str, str | int | float]
    groups: list[_Group]
    gate_open: bool
    threshold: Any
    rng: Any
    rules: Any


def save(replay: Replay, folder: str | Path, run: Run | None = None) -> None:
    """Write the replay state into the folder, in place of an older one there.

    Args:
        replay: what to save.
        folder: made where it does not exist.
        run: what a later run must have in common with this one, by setting ("rollout.n": 8).

    Raises OSError: the disk refused; a state that was there before is still complete.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    io.flush(folder.parent)
    state = replay.state_dict()
    stored = state.pop("groups")
    tensors = {
        f"{place}.{name}": plane
        for place, one in enumerate(stored)
        for name, plane in one.group().planes().items()
    }
    data = safetensors.torch.save(tensors)
    digest = hashlib.sha256(data).hexdigest()
    record = {
        "format_version": 4,  # of _Record
        "groups_sha256": digest,
        "run": dict(run or {}),
        "groups": [{name: getattr(one, name) for name in _Group.model_fields} for one in stored],
        **state,
    }
    io.write(_groups_path(folder, digest), data)
    io.write(folder / STATE_FILE, json.dumps(record).encode())
    for path in (*folder.glob("groups-*.safetensors"), *folder.glob("*.tmp")):
        if path != _groups_path(folder, digest):
            path.unlink()


def load(replay: Replay, folder: str | Path, run: Run | None = None) -> None:
    """Continue from the state in the folder: same contents, draws and gate as if never stopped.

    Raises ReplayStateError: nothing complete is there, a file is damaged, the format is another version's, or
    the state does not fit the settings or ``run``. ``replay`` is unchanged then.
    """
    folder = Path(folder)
    record = read_record(folder)
    saved, current = record["run"], run or {}
    for setting in sorted(saved.keys() | current.keys()):
        if saved.get(setting) != current.get(setting):
            raise ReplayStateError(
                f"the replay buffer in {folder} was saved with {setting} {saved.get(setting)}, and this run "
                f"has {current.get(setting)}; go on with the same, or pass replay.restore=false to start "
                "with an empty buffer"
            )
    replay.load_state_dict({**record, "groups": read_groups(folder, record)})


def read_record(folder: Path) -> dict[str, Any]:
    """All of a saved state but the groups, as ``save`` wrote it.

    Raises ReplayStateError: nothing complete is there, or it is damaged or another version's.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        raise ReplayStateError(
            f"{path} does not exist: no complete replay state was saved there; use another checkpoint, or "
            "pass replay.restore=false to start with an empty buffer"
        )
    try:
        return vars(_Record.model_validate_json(path.read_bytes()))
    except ValidationError as error:
        first = error.errors()[0]
        what = " ".join((*(f"{part}:" for part in first["loc"]), first["msg"]))
        raise ReplayStateError(
            f"{path} is damaged or of another version: {what}; use another checkpoint"
        ) from error


def read_groups(folder: Path, record: Mapping[str, Any]) -> list[StoredGroup]:
    """The stored groups of a saved state whose record was read.

    Raises ReplayStateError: the tensors are missing or damaged, or do not fit the record.
    """
    digest = record["groups_sha256"]
    path = _groups_path(folder, digest)
    if not path.is_file():
        raise ReplayStateError(f"{path} does not exist, though {STATE_FILE} names it; use another checkpoint")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise ReplayStateError(f"{path} is damaged: its checksum is wrong; use another checkpoint")
    try:
        tensors = safetensors.torch.load(data)
    except SafetensorError as error:
        raise ReplayStateError(f"{path} is not a safetensors file: {error}") from error
    try:
        planes: list[dict[str, Tensor]] = [{} for _ in record["groups"]]
        for key, plane in tensors.items():
            place, _, name = key.partition(".")
            planes[int(place)][name] = plane
        return [
            StoredGroup.of(
                RolloutGroup(one.prompt_index, one.side, one.mode, one.step, **own), one.reuse_count
            )
            for one, own in zip(record["groups"], planes, strict=True)
        ]
    except (IndexError, TypeError, ValueError) as error:
        raise ReplayStateError(f"{folder} does not hold whole rollout groups: {error}") from error


def _groups_path(folder: Path, digest: str) -> Path:
    return folder / f"groups-{digest[:16]}.safetensors"
