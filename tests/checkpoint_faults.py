"""A checkpoint made of every part a real one has, saved by processes that fail or die on the way."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import signal
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from recipe.rerule import replay
from recipe.rerule.runs import checkpoints

RANKS = 2
SHARDS = [f"{part}_world_size_{RANKS}_rank_{rank}.pt" for rank in range(RANKS) for part in ("model", "optim")]
JSON_FILES = ["actor/fsdp_config.json", "actor/huggingface/config.json"]
TORCH_FILES = [*(f"actor/{name}" for name in SHARDS), "data.pt"]
PIECES = 3
ONE_GROUP = {
    "admission": "all",
    "min_groups": 1,
    "warmup_steps": 0,
    "capacity": 1,
    "groups_per_update": 1,
}


class Stamp(NamedTuple):
    """What every part of one checkpoint holds, and no part of another attempt at it."""

    step: int
    attempt: int


def new_stamp(step: int) -> Stamp:
    return Stamp(step, time.monotonic_ns())


def save_checkpoint(run: Path, step: int, limit: int = 2, interim: bool = False, best: bool = False) -> None:
    """The calls of a training run that saves a step; verl's part of it with verl's plain writes.

    interim: as a checkpoint that trainer.save_freq did not ask for.
    best: the step is then noted as the best one.
    """
    stamp = new_stamp(step)
    checkpoints.begin(run, step)
    folder = checkpoints.step_folder(run, step)
    replay.save(_replay(stamp), folder / "replay")
    write_verl_parts(folder, stamp)
    with open(run / checkpoints.TRACKER_FILE, "w") as file:
        file.write(str(step))
    checkpoints.finish(run, step, interim)
    delete_old(run, limit)
    if best:
        checkpoints.note_best(run, checkpoints.Best(step, step / 100, 0.5, 0.5))
        delete_old(run, limit)


def delete_old(run: Path, limit: int) -> None:
    checkpoints.drop_interim(run)
    checkpoints.keep(run, limit)


def write_verl_parts(folder: Path, stamp: Stamp) -> None:
    (folder / "actor" / "huggingface").mkdir(parents=True, exist_ok=True)
    content = stamp._asdict()
    for name in TORCH_FILES:
        buffer = io.BytesIO()
        torch.save({**content, "tensor": torch.full((64,), float(stamp.step))}, buffer)
        _write_in_pieces(folder / name, buffer.getvalue())
    for name in JSON_FILES:
        _write_in_pieces(folder / name, json.dumps(content).encode())


def stamps(folder: Path) -> set[Stamp]:
    """Load every part of a checkpoint and return the stamps found; one, unless attempts are mixed.

    Raises AssertionError where a part is missing or one too many is there, and whatever loading raises.
    """
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    expected = {*TORCH_FILES, *JSON_FILES, checkpoints.MARKER_FILE}
    assert {name for name in names if not name.startswith("replay/")} == expected
    contents = [torch.load(folder / name, weights_only=True) for name in TORCH_FILES]
    contents += [json.loads((folder / name).read_bytes()) for name in JSON_FILES]
    return {Stamp(content["step"], content["attempt"]) for content in contents} | {_replay_stamp(folder)}


def in_child(work: Callable[[], None]) -> int:
    """Fork, do the work there; returns the child's process id. The child never comes back from here."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except OSError as error:
        status = error.errno or 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def exit_code(child: int) -> int:
    """Wait for a child: its exit status, an errno where an OSError ended it, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Fault(ABC):
    """What happens at the write-type call number `at`, counted from 0. Replaces functions for good."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.calls = 0

    def install(self) -> None:
        for name in ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir"):
            setattr(os, name, self._counted(getattr(os, name)))
        builtins.open = io.open = self._open  # type: ignore[assignment]

    def before(self, half_done: Callable[[], object] | None = None) -> None:
        """To be called before each write-type call; `half_done` does a part of a write."""
        if self.calls == self.at:
            self.strike(half_done)
        self.calls += 1

    @abstractmethod
    def strike(self, half_done: Callable[[], object] | None) -> None:
        """Fail, or die."""

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.before()
            return function(*arguments, **options)

        return call

    def _open(self, path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if not set(mode) & set("wax+"):
            return _real_open(path, mode, *arguments, **options)
        self.before()
        return _File(_real_open(path, mode, *arguments, **options), self)


class DiskFull(Fault):
    """The call fails; what was being written is there by half."""

    def strike(self, half_done: Callable[[], object] | None) -> None:
        if half_done:
            half_done()
        self.calls += 1
        raise OSError(errno.ENOSPC, "no space left")


class KilledBefore(Fault):
    """SIGKILL before the call; what Python buffers is lost."""

    def strike(self, half_done: Callable[[], object] | None) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class KilledWithin(Fault):
    """SIGKILL with half of a write on the disk; only writes count."""

    def before(self, half_done: Callable[[], object] | None = None) -> None:
        if half_done:
            super().before(half_done)

    def strike(self, half_done: Callable[[], object] | None) -> None:
        assert half_done is not None
        half_done()
        os.kill(os.getpid(), signal.SIGKILL)


class _File:
    """A file open for writing whose writes, flushes and closing count."""

    def __init__(self, file: Any, fault: Fault) -> None:
        self._file = file
        self._fault = fault

    def write(self, data: Any) -> int:
        self._fault.before(lambda: self._write_half(data))
        return self._file.write(data)

    def flush(self) -> None:
        self._fault.before()
        self._file.flush()

    def close(self) -> None:
        if not self._file.closed:
            self._fault.before()
        self._file.close()

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def _write_half(self, data: Any) -> None:
        self._file.write(data[: len(data) // 2])
        self._file.flush()


_real_open = io.open


def _write_in_pieces(path: Path, data: bytes) -> None:
    size = -(-len(data) // PIECES)
    with open(path, "wb") as file:
        for start in range(0, len(data), size):
            file.write(data[start : start + size])


def _new_replay() -> replay.Replay:
    return replay.Replay(replay.ReplayConfig.from_dict(ONE_GROUP))


def _replay(stamp: Stamp) -> replay.Replay:
    """A replay that holds one group, with the stamp in it."""
    state = _new_replay()
    group = replay.RolloutGroup(
        prompt_index=stamp.attempt,
        side="forget",
        mode="qa",
        step=stamp.step,
        prompt_ids=torch.ones(3, dtype=torch.int32),
        response_ids=torch.ones(2, dtype=torch.int32),
        lengths=torch.ones(2, dtype=torch.int32),
        response_mask=torch.ones(2, dtype=torch.bool),
        old_log_probs=torch.zeros(2),
        advantages=torch.tensor([-1.0, 1.0]),
        rewards=torch.tensor([0.0, 1.0]),
        ref_log_probs=torch.zeros(2),
    )
    state.offer([group], stamp.step)
    return state


def _replay_stamp(folder: Path) -> Stamp:
    state = _new_replay()
    replay.load(state, folder / "replay")
    (group,) = state.draw(step=1_000_000)
    return Stamp(group.step, group.prompt_index)
