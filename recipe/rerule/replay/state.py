"""Replay state on disk: tensors as safetensors, the rest as JSON; reading it executes nothing.

A folder holds ``groups-<digest>.safetensors`` and ``state.json``, which names the digest. The tensors are
written first and ``state.json`` last, each under a temporary name, flushed and renamed, so the folder always
holds the last complete state or none, also when an older state is replaced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from .. import io
from .buffer import StoredGroup
from .group import PLANES, ROW_PLANES, TOKEN_PLANES, RolloutGroup
from .replay import Replay, ReplayStateError

STATE_FILE = "state.json"
Run = Mapping[str, str | float]


class _Record(BaseModel, extra="forbid", strict=True):
    """What state.json holds; ``Replay.load_state_dict`` checks the values of rng, threshold and rules."""

    format_version: Literal[3]
    groups_sha256: str
    run: dict[str, str | int | float]
    sides: list[str]
    modes: list[str]
    draws: list[int]
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
    groups = [one.group() for one in stored]
    data = safetensors.torch.save(pack(groups))
    digest = hashlib.sha256(data).hexdigest()
    record = {
        "format_version": 3,  # of _Record
        "groups_sha256": digest,
        "run": dict(run or {}),
        "sides": [group.side for group in groups],
        "modes": [group.mode for group in groups],
        "draws": [one.reuse_count for one in stored],
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
    _require_same_run(folder, record["run"], run or {})
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
        groups = unpack(tensors, record["sides"], record["modes"])
        return [StoredGroup.of(group, draws) for group, draws in zip(groups, record["draws"], strict=True)]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ReplayStateError(f"{folder} does not hold whole rollout groups: {error}") from error


def _require_same_run(folder: Path, saved: Run, current: Run) -> None:
    for setting in sorted(saved.keys() | current.keys()):
        if saved.get(setting) != current.get(setting):
            raise ReplayStateError(
                f"the replay buffer in {folder} was saved with {setting} {saved.get(setting)}, and this run "
                f"has {current.get(setting)}; go on with the same, or pass replay.restore=false to start "
                "with an empty buffer"
            )


def pack(groups: Sequence[RolloutGroup]) -> dict[str, Tensor]:
    """Concatenate each plane over the G groups, with the extents needed to take them apart again.

    Returns:
        the planes of RolloutGroup (ref_log_probs only of the groups that have it), and int64 [G]
        prompt_index, step, sizes (n), prompt_lengths, and bool [G] has_ref.
    """
    planes = [group.planes() for group in groups]
    packed = {
        name: torch.cat([torch.empty(0, dtype=dtype), *(one[name] for one in planes if name in one)])
        for name, dtype in PLANES.items()
    }
    numbers = {
        "prompt_index": [group.prompt_index for group in groups],
        "step": [group.step for group in groups],
        "sizes": [group.n for group in groups],
        "prompt_lengths": [len(group.prompt_ids) for group in groups],
    }
    packed.update({name: torch.tensor(values, dtype=torch.int64) for name, values in numbers.items()})
    packed["has_ref"] = torch.tensor([group.ref_log_probs is not None for group in groups], dtype=torch.bool)
    return packed


def unpack(packed: dict[str, Tensor], sides: Sequence[str], modes: Sequence[str]) -> list[RolloutGroup]:
    """Inverse of ``pack``; the groups share memory with ``packed``.

    Raises KeyError, ValueError, RuntimeError: a tensor is missing or the extents do not fit.
    """
    sizes = packed["sizes"].tolist()
    tokens = [int(lengths.sum()) for lengths in packed["lengths"].split(sizes)]
    has_ref = packed["has_ref"].tolist()
    ref_tokens = [count for count, has in zip(tokens, has_ref, strict=True) if has]
    extents = {name: sizes for name in ROW_PLANES} | {name: tokens for name in TOKEN_PLANES}
    extents |= {"prompt_ids": packed["prompt_lengths"].tolist(), "ref_log_probs": ref_tokens}
    pieces = {name: iter(packed[name].split(extents[name])) for name in PLANES}
    indices, steps = packed["prompt_index"].tolist(), packed["step"].tolist()
    groups = []
    for prompt_index, step, side, mode, has in zip(indices, steps, sides, modes, has_ref, strict=True):
        present = [name for name in PLANES if has or name != "ref_log_probs"]
        planes = {name: next(pieces[name]) for name in present}
        groups.append(RolloutGroup(prompt_index=prompt_index, side=side, mode=mode, step=step, **planes))
    return groups


def _groups_path(folder: Path, digest: str) -> Path:
    return folder / f"groups-{digest[:16]}.safetensors"
