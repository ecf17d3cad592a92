"""A checkpoint made of every part a real one has, saved by processes that fail or die on the way."""

import builtins
import errno
import io
import json
import os
import signal
import sys
import time
import traceback
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
ONE_GROUP = {"admission": "all", "min_groups": 1, "warmup_steps": 0, "capacity": 1, "groups_per_update": 1}


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
    buffer = replay.Replay(replay.ReplayConfig.from_dict(ONE_GROUP))
    buffer.offer([_group(stamp)], step)
    replay.save(buffer, folder / "replay")
    write_verl_parts(folder, stamp)
    with open(run / checkpoints.TRACKER_FILE, "w") as file:
        file.write(str(step))
    checkpoints.finish(run, step, interim)
    checkpoints.keep(run, limit)
    if best:
        checkpoints.note_best(run, checkpoints.Best(step, step / 100, 0.5, 0.5, 0.0))
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
    buffer = replay.Replay(replay.ReplayConfig.from_dict(ONE_GROUP))
    replay.load(buffer, folder / "replay")
    (group,) = buffer.draw(step=1_000_000)
    found = {Stamp(content["step"], content["attempt"]) for content in contents}
    return found | {Stamp(group.step, group.prompt_index)}


def in_child(work: Callable[[], None]) -> int:
    """Do the work in a fork: its exit status, an errno where an OSError ended it, or minus the signal."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
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


HalfDone = Callable[[], object] | None
"""Does a part of the write that is about to happen; None where the call is no write."""


def disk_full(half_done: HalfDone) -> None:
    """The call fails; what was being written is there by half."""
    if half_done:
        half_done()
    raise OSError(errno.ENOSPC, "no space left")


def killed(half_done: HalfDone) -> None:
    """SIGKILL before the call; what Python buffers is lost."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed_within(half_done: HalfDone) -> None:
    """SIGKILL with half of a write on the disk; only writes count."""
    assert half_done is not None
    half_done()
    os.kill(os.getpid(), signal.SIGKILL)


class Fault:
    """Does `strike` at the write-type call number `at`, counted from 0. Replaces functions for good."""

    def __init__(self, strike: Callable[[HalfDone], None], at: int) -> None:
        self._strike = strike
        self._left = at
        for name in ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir"):
            setattr(os, name, self._counted(getattr(os, name)))
        builtins.open = io.open = self._open  # type: ignore[assignment]

    def before(self, half_done: HalfDone = None) -> None:
        """To be called before each write-type call."""
        if half_done is None and self._strike is killed_within:
            return
        self._left -= 1
        if self._left == -1:
            self._strike(half_done)

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

    def __enter__(self) -> "_File":
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


def _group(stamp: Stamp) -> replay.RolloutGroup:
    """One whose making needs none of torch's threads, for which a forked child would wait without end."""
    ones, zeros = torch.ones(2, dtype=torch.int32), torch.zeros(2)
    return replay.RolloutGroup(
        prompt_index=stamp.attempt, side="forget", mode="qa", step=stamp.step,
        prompt_ids=ones, response_ids=ones, lengths=ones, response_mask=ones.bool(),
        old_log_probs=zeros, ref_log_probs=zeros,
        advantages=torch.tensor([-1.0, 1.0]), rewards=torch.tensor([0.0, 1.0]),
    )  # fmt: skip
