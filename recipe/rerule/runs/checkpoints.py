"""Which checkpoints of a run count, and how they come and go without one ever being lost or half there.

<run>/global_step_N/                        everything of step N: model, optimiser, data order, replay
<run>/global_step_N/complete.json           {"format_version", "step", "files": {relative path: bytes}}, and
                                            "interim": true where trainer.save_freq did not ask for it
<run>/latest_checkpointed_iteration.txt     verl's tracker: the step verl goes on from
<run>/best.json                             `Best`: the step with the best validation of the run;
                                            its checkpoint is not deleted
<run>/global_step_N.removed/                being deleted

A checkpoint counts when complete.json is there and every file it names has the size it names. That file is
written last, once everything else is on the disk. verl writes its tracker before that, and not atomically, so
the tracker is never believed: after each save and before each resume it is brought in line with the newest
checkpoint that counts. All ranks have to write to the one run folder: a checkpoint that lacks a rank's file,
which is known from the names of the others', does not count.

verl unpickles the .pt files of a checkpoint, which can execute anything. So resume_mode=auto takes only .pt
files that belong to this user or to root and that complete.json names. Whoever passes resume_mode=resume_path
vouches for the checkpoint.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from recipe.rerule import io
from recipe.rerule.runs.run_folder import foreign_to_checkpoint

FORMAT_VERSION = 1
MARKER_FILE = "complete.json"
TRACKER_FILE = "latest_checkpointed_iteration.txt"
BEST_FILE = "best.json"

RANK_FILES_SECONDS = 60.0
"""How long the file of a rank on another node may take to be seen: network file systems cache folders."""

_REMOVED, _KEPT = ".removed", ".kept"
_RANK_FILE = re.compile(r"(.*_world_size_(\d+)_rank_)\d+\.pt")


@dataclass(frozen=True)
class Best:
    """The best step of a run by validation: shares of the responses, and as the score the mean of two.

    Of equal scores the step is better that refuses less of the retain side.
    """

    step: int
    score: float
    forget_refused: float
    retain_right: float
    retain_refused: float

    def better_than(self, other: Best | None) -> bool:
        """Whether this step is better, also than none."""
        return other is None or (self.score, -self.retain_refused) > (other.score, -other.retain_refused)


def step_folder(run_folder: str | Path, step: int) -> Path:
    """Where the checkpoint of a step is; verl's name for it."""
    return Path(run_folder) / f"global_step_{step}"


def begin(run_folder: str | Path, step: int) -> None:
    """Make room for the checkpoint of a step: a folder left over from an earlier attempt is deleted.

    Its files might be of other ranks or another run, and would be taken for parts of the new checkpoint. A
    folder that holds a file which no run wrote is renamed instead, to global_step_N.kept (.kept1, ...).
    """
    for removed in Path(run_folder).glob(f"global_step_*{_REMOVED}"):  # a kill interrupted the removal
        if foreign_to_checkpoint(removed) is None:
            shutil.rmtree(removed)
    folder = step_folder(run_folder, step)
    if not folder.exists():
        return
    if (foreign := foreign_to_checkpoint(folder)) is None:
        _remove(folder)
    else:
        names = (f"{os.path.abspath(folder)}{_KEPT}{number or ''}" for number in itertools.count())
        kept = next(name for name in names if not os.path.lexists(name))
        io.warn(f"{folder} is now {kept}, because no run wrote {foreign}")
        os.rename(folder, kept)


def finish(run_folder: str | Path, step: int, interim: bool = False) -> None:
    """Make the checkpoint of a step count, now that every part of it is written; then name it in the tracker.

    interim: said in complete.json, for `keep`.

    Raises:
        ValueError: a rank's file is missing; the checkpoint does not count.
        OSError: the disk refused; the checkpoint may not count then, and the one before it still does.
    """
    folder = step_folder(run_folder, step)
    _require_rank_files(folder)
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in _files(folder)}
    io.flush_tree(folder)
    io.flush(folder.parent)
    record = {"format_version": FORMAT_VERSION, "step": step, "files": sizes}
    record |= {"interim": True} if interim else {}
    io.write(folder / MARKER_FILE, json.dumps(record).encode())
    _set_tracker(run_folder, step)


def keep(run_folder: str | Path, limit: int | None) -> None:
    """Delete interim checkpoints, and the oldest complete ones beyond `limit`. To be called after `finish`.

    The newest complete checkpoint and the best stay. Folders that do not count are left alone: they may be
    another program's, and `begin` takes their place. So are folders that hold a file which no run wrote.

    limit: at least 1; None: no limit.
    """
    earlier = _complete(run_folder)[:-1]
    interim = [one for one in earlier if json.loads((one / MARKER_FILE).read_bytes()).get("interim") is True]
    _remove_all(run_folder, interim)
    if limit is not None:
        _remove_all(run_folder, _complete(run_folder)[:-limit])


def _remove_all(run_folder: str | Path, folders: Iterable[Path]) -> None:
    noted = best(run_folder)
    for folder in folders:
        if noted is not None and step_of(folder.name) == noted.step:
            continue
        if (foreign := foreign_to_checkpoint(folder)) is None:
            _remove(folder)
        else:
            io.warn(f"{folder} is kept, because no run wrote {foreign}")


def note_best(run_folder: str | Path, found: Best) -> None:
    """Say which step is the run's best. To be called after `finish` of that step, and before older go."""
    io.write(Path(run_folder) / BEST_FILE, json.dumps(asdict(found)).encode())


def best(run_folder: str | Path) -> Best | None:
    """The run's best step, where one is noted and its checkpoint counts."""
    try:
        noted = Best(**json.loads((Path(run_folder) / BEST_FILE).read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return noted if problem(step_folder(run_folder, noted.step)) is None else None


def problem(folder: str | Path) -> str | None:
    """Why the checkpoint in this folder does not count; None if it does."""
    folder = Path(folder)
    marker = folder / MARKER_FILE
    if not marker.is_file():
        return f"{MARKER_FILE} is missing"
    try:
        record = json.loads(marker.read_bytes())
    except (ValueError, RecursionError):
        return f"{MARKER_FILE} is damaged"
    version = record.get("format_version") if isinstance(record, dict) else None
    if version != FORMAT_VERSION:
        return f"{MARKER_FILE} has format version {version}, and this program reads {FORMAT_VERSION}"
    if not isinstance(sizes := record.get("files"), dict):
        return f"{MARKER_FILE} is damaged"
    if record.get("step") != step_of(folder.name):
        return f"{MARKER_FILE} is of step {record.get('step')}"
    if (reason := _ranks_problem(sizes)) is not None:
        return reason
    for name, size in sizes.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if (found := (folder / name).stat().st_size) != size:
            return f"{name} has {found} bytes instead of {size}"
    return None


def newest_complete(run_folder: str | Path) -> int | None:
    """The highest step of the run whose checkpoint counts; None without one."""
    steps = reversed(_steps(run_folder))
    return next((step for step in steps if problem(step_folder(run_folder, step)) is None), None)


def bytes_of_newest(run_folder: str | Path) -> int | None:
    """Bytes of the run's newest checkpoint that counts; None without one."""
    step = newest_complete(run_folder)
    return None if step is None else sum(_sizes(step_folder(run_folder, step)).values())


def prepare_resume(run_folder: str | Path) -> tuple[int | None, str | None]:
    """For trainer.resume_mode=auto: make verl go on from the newest complete checkpoint.

    verl follows the tracker, which is rewritten to that step; without such a checkpoint it is removed, and
    verl starts from the beginning. Returns the step, None without one, and one line for the user, None where
    the newest folder could be used.
    """
    step, steps = newest_complete(run_folder), _steps(run_folder)
    _set_tracker(run_folder, step)
    if not steps or (reason := problem(newest := step_folder(run_folder, steps[-1]))) is None:
        return step, None
    start = "starting from the beginning" if step is None else f"going on from global_step_{step}"
    return step, f"checkpoint {newest} is incomplete: {reason}; {start}"


def check_resume_from(run_folder: str | Path, checkpoint: str | Path) -> None:
    """For trainer.resume_mode=resume_path: refuse a checkpoint no run may go on from. Writes nothing.

    A checkpoint older than the newest of the run folder is refused: killed before its first save, the run
    would otherwise go on, by resume_mode=auto, from the newer one that the user had turned away from.

    Raises ValueError: the checkpoint does not count, or is older than the newest of the run folder.
    """
    given = f"trainer.resume_from_path is {checkpoint}"
    step = step_of(os.path.basename(checkpoint))
    if step is None:
        raise ValueError(f"{given}; its last part has to be global_step_N, with no / after it")
    if (reason := problem(checkpoint)) is not None:
        raise ValueError(f"{given}, which is incomplete: {reason}; choose another checkpoint")
    newest = newest_complete(run_folder)
    if newest is not None and newest > step:
        raise ValueError(
            f"{given}, but {run_folder} holds the newer global_step_{newest}; go on from that with "
            "trainer.resume_mode=auto, or choose another trainer.default_local_dir"
        )


def resumed(trainer: DictConfig) -> Path | None:
    """The checkpoint that a run with these settings `trainer` goes on from; None where it starts anew."""
    if trainer.resume_mode == "resume_path":
        return Path(trainer.resume_from_path)
    step = newest_complete(trainer.default_local_dir) if trainer.resume_mode == "auto" else None
    return None if step is None else step_folder(trainer.default_local_dir, step)


def find(trainer: DictConfig) -> Path | None:
    """`resumed`, from which verl goes on too when this returns. To be called after `check_resume_from`."""
    if trainer.resume_mode == "resume_path":
        # verl reads the tracker in this mode too, and fails where it is torn.
        _set_tracker(trainer.default_local_dir, newest_complete(trainer.default_local_dir))
    elif trainer.resume_mode == "auto":
        _, notice = prepare_resume(trainer.default_local_dir)
        if notice is not None:
            io.warn(notice)
    return resumed(trainer)


def check_trusted(trainer: DictConfig) -> None:
    """Refuse to go on by resume_mode=auto from files that are not the run's own. Writes nothing.

    Raises ValueError: naming the file and its owner, or the file that complete.json does not name.
    """
    if trainer.resume_mode != "auto" or (folder := resumed(trainer)) is None:
        return
    for file in sorted(folder.rglob("*.pt")):
        if (owner := file.stat().st_uid) not in (0, os.geteuid()):
            reason = f"{file} belongs to another user (uid {owner})"
        elif str(file.relative_to(folder)) not in _sizes(folder):
            reason = f"{file} is not named in {folder / MARKER_FILE}, so this run did not write it"
        else:
            continue
        raise ValueError(
            f"{reason}; going on from it would execute what its .pt files say. Where you trust it, pass "
            f"trainer.resume_mode=resume_path trainer.resume_from_path={folder}"
        )


def check_devices(trainer: DictConfig) -> None:
    """Refuse to go on with another number of devices: each rank reads the file that it has written itself.

    Raises ValueError: naming the checkpoint and both numbers.
    """
    if (folder := resumed(trainer)) is None:
        return
    devices = trainer.n_gpus_per_node * trainer.nnodes
    saved = {int(found[2]) for file in _files(folder) if (found := _RANK_FILE.fullmatch(file.name))}
    if saved and devices not in saved:
        raise ValueError(
            f"{folder} is of a run on {max(saved)} devices, and this one has {devices} "
            f"(trainer.n_gpus_per_node x trainer.nnodes); go on with {max(saved)}, or start another run "
            "from the model in that checkpoint, in another trainer.default_local_dir"
        )


def length_keys(config: DictConfig, optimizer: str) -> tuple[str, ...]:
    """The settings of the number of steps, where the learning rate follows a schedule that depends on it."""
    if OmegaConf.select(config, f"{optimizer}.lr_scheduler_type") != "cosine":
        return ()
    total = "trainer.total_training_steps"
    return (total,) if config.trainer.total_training_steps is not None else (total, "trainer.total_epochs")


def _complete(run_folder: str | Path) -> list[Path]:
    """The checkpoints that count, the newest last."""
    folders = [step_folder(run_folder, step) for step in _steps(run_folder)]
    return [folder for folder in folders if problem(folder) is None]


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file of a checkpoint that counts."""
    sizes: dict[str, int] = json.loads((folder / MARKER_FILE).read_bytes())["files"]
    return sizes


def _steps(run_folder: str | Path) -> list[int]:
    """Steps that have a folder, complete or not, in ascending order."""
    folder = Path(run_folder)
    found = [step_of(path.name) for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return sorted(step for step in found if step is not None)


def step_of(name: str) -> int | None:
    """The step of a checkpoint folder's name; None where it is no such name."""
    match = re.fullmatch(r"global_step_(0|[1-9][0-9]*)", name)
    return int(match[1]) if match else None


def _ranks_problem(names: Collection[str]) -> str | None:
    """The first file that a rank did not write, by the names of the others' files; None without one."""
    of_ranks = {(found[1], int(found[2])) for name in names if (found := _RANK_FILE.fullmatch(name))}
    expected = (f"{stem}{rank}.pt" for stem, ranks in sorted(of_ranks) for rank in range(ranks))
    missing = next((name for name in expected if name not in names), None)
    return None if missing is None else f"{missing} is missing"


def _require_rank_files(folder: Path) -> None:
    deadline, told = time.monotonic() + RANK_FILES_SECONDS, False
    while (reason := _ranks_problem({str(path.relative_to(folder)) for path in _files(folder)})) is not None:
        if time.monotonic() >= deadline:
            raise ValueError(
                f"checkpoint {folder} is incomplete: {reason}; every rank must write to the same folder, so "
                "trainer.default_local_dir must be on a disk that all nodes share"
            )
        if not told:
            print(f"waiting in {folder}, where {reason} ...", flush=True)
            told = True
        time.sleep(1.0)


def _set_tracker(run_folder: str | Path, step: int | None) -> None:
    tracker = Path(run_folder) / TRACKER_FILE
    if step is None:
        tracker.unlink(missing_ok=True)
    else:
        io.write(tracker, str(step).encode())


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _remove(folder: Path) -> None:
    # Renamed first, so that what a kill leaves half deleted is known as such: the next `begin` deletes it.
    removed = folder.with_name(folder.name + _REMOVED)
    os.rename(folder, removed)
    shutil.rmtree(removed)
