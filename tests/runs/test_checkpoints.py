"""Whatever fails or dies while a checkpoint is saved, a run goes on from a whole one, the newest there is."""

import errno
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from recipe.rerule.runs import checkpoints
from recipe.rerule.runs.checkpoints import MARKER_FILE, TRACKER_FILE, step_folder
from tests import checkpoint_faults as faults

PREVIOUS, NEW = 6, 9
MEMORY = Path("/dev/shm")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder that no disk slows down, where the system has one; killed processes cannot tell it apart."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as folder:
        yield Path(folder)


def make_run(run: Path, *steps: int) -> Path:
    """A run folder with a whole checkpoint of each step."""
    run.mkdir()
    for step in steps:
        faults.save_checkpoint(run, step, limit=9)
    return run


def folders(run: Path) -> set[str]:
    return {path.name for path in run.iterdir() if path.is_dir()}


def verl_goes_on_from(run: Path) -> str | None:
    """The checkpoint that verl finds by its tracker."""
    from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

    return find_latest_ckpt_path(str(run))


def assert_whole(run: Path, step: int | None) -> None:
    """The checkpoint of `step` loads, holds parts of one attempt only, and is where verl will go on."""
    assert step is not None
    assert {stamp.step for stamp in faults.stamps(step_folder(run, step))} == {step}
    assert len(faults.stamps(step_folder(run, step))) == 1
    assert (run / TRACKER_FILE).read_text() == str(step)


# A fault at every call.


def scarred_run(run: Path) -> None:
    """Two checkpoints, so that saving a third deletes one; and what kills left.

    One came while deleting, the other during an attempt at NEW by a run of more ranks.
    """
    make_run(run, 3, PREVIOUS)
    stale = step_folder(run, NEW)
    faults.write_verl_parts(stale, faults.new_stamp(NEW))
    shutil.copy(stale / "data.pt", stale / "actor" / "model_world_size_4_rank_3.pt")
    shutil.copytree(stale / "actor", run / "global_step_0.removed" / "actor")
    (run / TRACKER_FILE).write_text("")


def best_run(run: Path) -> None:
    """A checkpoint that is the best, and a later one; NEW will be the best."""
    make_run(run)
    faults.save_checkpoint(run, PREVIOUS, interim=True, best=True)
    faults.save_checkpoint(run, PREVIOUS + 1)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("strike", "calls", "prepare"),
    [
        (faults.disk_full, 90, scarred_run),
        (faults.killed, 90, best_run),
        pytest.param(faults.killed, 90, scarred_run, marks=pytest.mark.full),
        (faults.killed_within, 25, best_run),
    ],
)
def test_fault_at_every_write_call_of_a_save(
    strike: Callable[[faults.HalfDone], None],
    calls: int,
    prepare: Callable[[Path], None],
    every: int,
    memory: Path,
) -> None:
    """The process fails or dies at the n-th call of saving NEW, and the run goes on from a whole checkpoint.

    n is each number that `every` divides.
    At any moment the old or the new best checkpoint is there, whole and noted.
    """
    prepare(memory / "template")
    how = {"interim": True, "best": True} if prepare is best_run else {}
    steps, bests, code = [], [], 1
    while code:
        run = shutil.copytree(memory / "template", memory / str(len(steps)))

        def save(run: Path = run, number: int = every * len(steps)) -> None:
            faults.Fault(strike, at=number)
            faults.save_checkpoint(run, NEW, **how)

        code = faults.in_child(save)
        assert code in (0, errno.ENOSPC if strike is faults.disk_full else -signal.SIGKILL)
        if how:
            noted = checkpoints.best(run)
            assert noted is not None
            assert {stamp.step for stamp in faults.stamps(step_folder(run, noted.step))} == {noted.step}
            bests.append(noted.step)
        steps.append(checkpoints.prepare_resume(run)[0] or 0)
        assert_whole(run, steps[-1])
        faults.save_checkpoint(run, NEW, **how)
        assert checkpoints.prepare_resume(run) == (NEW, None)
        assert_whole(run, NEW)
        assert folders(run) == {f"global_step_{NEW}", f"global_step_{PREVIOUS + bool(how)}"}
        shutil.rmtree(run)
    # The previous checkpoint up to some call, the new one from there on.
    assert (steps, bests) == (sorted(steps), sorted(bests))
    assert set(steps) == {PREVIOUS + bool(how), NEW}
    assert set(bests) == ({PREVIOUS, NEW} if how else set())
    assert len(steps) > calls // every  # at least so many were made to fail


# What is on the disk when the marker is.


def test_everything_is_flushed_before_the_marker_and_the_marker_before_the_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    folder = step_folder(run, 3)
    faults.write_verl_parts(folder, faults.new_stamp(3))
    events: list[tuple[str, Path]] = []
    replace = os.replace

    def logged_fsync(descriptor: int) -> None:
        events.append(("flushed", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))

    def logged_replace(source: Path, target: Path) -> None:
        replace(source, target)
        events.append(("named", target))

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "replace", logged_replace)
    checkpoints.finish(run, 3)
    monkeypatch.undo()

    marker, tracker_file = folder / MARKER_FILE, run / TRACKER_FILE
    at = events.index(("named", marker))
    parts = {path for path in folder.rglob("*") if path != marker}
    assert len(parts) == 9
    assert {("flushed", path) for path in {*parts, folder, run}} <= set(events[:at])
    assert events[at - 1 :] == [
        ("flushed", folder / f"{MARKER_FILE}.tmp"),
        ("named", marker),
        ("flushed", folder),
        ("flushed", run / f"{TRACKER_FILE}.tmp"),
        ("named", tracker_file),
        ("flushed", run),
    ]


# Files of every rank.

RANK_FILES = ["actor/model_world_size_2_rank_0.pt", "actor/optim_world_size_2_rank_1.pt"]


@pytest.mark.parametrize("missing", RANK_FILES)
def test_a_checkpoint_without_a_ranks_file_does_not_become_complete(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a node writes to a disk that the others do not share."""
    monkeypatch.setattr(checkpoints, "RANK_FILES_SECONDS", 0.0)
    run = make_run(tmp_path / "run", 3)
    folder = step_folder(run, 6)
    faults.write_verl_parts(folder, faults.new_stamp(6))
    (folder / missing).unlink()
    reason = f"{folder} is incomplete: {missing} is missing; every rank must write to the same folder"
    with pytest.raises(ValueError, match=reason):
        checkpoints.finish(run, 6)
    assert not (folder / MARKER_FILE).exists()
    assert checkpoints.prepare_resume(run)[0] == 3
    assert_whole(run, 3)


def test_files_that_appear_late_are_waited_for(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    folder = step_folder(tmp_path, 6)
    faults.write_verl_parts(folder, faults.new_stamp(6))
    late = folder / RANK_FILES[1]
    hidden = late.rename(tmp_path / "hidden")
    pauses: list[float] = []

    def appear(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            hidden.rename(late)

    monkeypatch.setattr(checkpoints.time, "sleep", appear)
    checkpoints.finish(tmp_path, 6)
    assert len(pauses) == 3
    assert checkpoints.problem(folder) is None
    assert capsys.readouterr().out == f"waiting in {folder}, where {RANK_FILES[1]} is missing ...\n"


# What does not count.


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def put(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


OF_TWO_RANKS = '{"format_version": 1, "step": 6, "files": {"a_world_size_2_rank_1.pt": 1}}'
DAMAGED: list[tuple[str, Callable[[Path], object], str]] = [
    (faults.TORCH_FILES[1], cut, rf"{faults.TORCH_FILES[1]} has \d+ bytes instead of \d+"),
    ("data.pt", put("longer" * 1000), r"data.pt has 6000 bytes instead of \d+"),
    ("replay/state.json", lambda path: (path.unlink(), path.mkdir()), "replay/state.json is missing"),
    (MARKER_FILE, Path.unlink, "complete.json is missing"),
    (MARKER_FILE, cut, "complete.json is damaged"),
    (MARKER_FILE, put(""), "complete.json is damaged"),
    (MARKER_FILE, put("[]"), "complete.json has format version None, and this program reads 1"),
    (MARKER_FILE, put('{"format_version": 2}'), "complete.json has format version 2, and this program .*"),
    (MARKER_FILE, put('{"format_version": 1, "step": 6, "files": []}'), "complete.json is damaged"),
    (MARKER_FILE, put('{"format_version": 1, "step": 3, "files": {}}'), "complete.json is of step 3"),
    (MARKER_FILE, put(OF_TWO_RANKS), "a_world_size_2_rank_0.pt is missing"),
]


@pytest.mark.parametrize(("part", "damage", "reason"), DAMAGED)
def test_what_is_wrong_is_named_and_the_checkpoint_before_used(
    part: str, damage: Callable[[Path], object], reason: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", 3, 6)
    damage(step_folder(run, 6) / part)
    line = f"global_step_6, which is incomplete: {reason}; choose another"
    with pytest.raises(ValueError, match=line):
        checkpoints.check_resume_from(run, run / "global_step_6")
    step, notice = checkpoints.prepare_resume(run)
    line = f"checkpoint {run}/global_step_6 is incomplete: {reason}; going on from global_step_3"
    assert re.fullmatch(line, str(notice))
    assert_whole(run, step)


def test_extra_files_do_not_matter_and_steps_are_numbers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 9, 10, 100)
    (step_folder(run, 100) / "notes.txt").write_text("mine")
    (run / "global_step_700").write_text("a file, no folder")
    for name in ("global_step_", "global_step_x", "global_step_0800", "global_step_-9", "records"):
        (run / name).mkdir()
    assert checkpoints.prepare_resume(run) == (100, None)


# verl's tracker.


@pytest.mark.parametrize("text", ["", "99", "\x80\x81", None])
def test_a_tracker_that_is_torn_or_missing_is_written_anew(text: str | None, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 3, 6)
    if text is None:
        (run / TRACKER_FILE).unlink()
    else:
        (run / TRACKER_FILE).write_bytes(text.encode("latin-1"))
    assert checkpoints.prepare_resume(run) == (6, None)
    assert verl_goes_on_from(run) == str(step_folder(run, 6))


@pytest.mark.parametrize("text", ["", "6"])
def test_without_a_complete_checkpoint_verl_starts_from_the_beginning(text: str, tmp_path: Path) -> None:
    assert checkpoints.prepare_resume(tmp_path / "absent") == (None, None)
    (tmp_path / TRACKER_FILE).write_text(text)
    assert checkpoints.prepare_resume(tmp_path) == (None, None)
    assert verl_goes_on_from(tmp_path) is None

    faults.write_verl_parts(step_folder(tmp_path, 6), faults.new_stamp(6))
    (tmp_path / TRACKER_FILE).write_text("6")
    notice = f"checkpoint {tmp_path}/global_step_6 is incomplete: complete.json is missing; "
    assert checkpoints.prepare_resume(tmp_path) == (None, notice + "starting from the beginning")
    assert verl_goes_on_from(tmp_path) is None


# Retention and left-overs.


def test_the_newest_complete_checkpoints_are_kept(tmp_path: Path) -> None:
    """What is not complete neither counts nor is deleted."""
    run = make_run(tmp_path / "run", 3, 6, 9, 12)
    cut(step_folder(run, 3) / "data.pt")
    cut(step_folder(run, 12) / "data.pt")
    for limit, steps in ((5, (3, 6, 9, 12)), (2, (3, 6, 9, 12)), (1, (3, 9, 12))):
        checkpoints.keep(run, limit)
        assert folders(run) == {f"global_step_{step}" for step in steps}


def test_an_interim_checkpoint_is_there_until_the_next_one_is_complete(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 3)
    for step in (5, 7):
        faults.write_verl_parts(step_folder(run, step), faults.new_stamp(step))
        checkpoints.keep(run, None)  # the step is not complete
        assert checkpoints.prepare_resume(run)[0] == {5: 3, 7: 5}[step]
        checkpoints.finish(run, step, interim=True)
        checkpoints.keep(run, None)
        assert folders(run) == {"global_step_3", f"global_step_{step}"}
    markers = [json.loads((step_folder(run, step) / MARKER_FILE).read_text()) for step in (3, 7)]
    assert [marker.get("interim") for marker in markers] == [None, True]
    faults.save_checkpoint(run, 8, limit=9)
    assert folders(run) == {"global_step_3", "global_step_8"}


def test_the_best_checkpoint_stays_until_another_is_the_best(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for step, best in ((2, False), (4, True), (6, False), (8, False)):
        faults.save_checkpoint(run, step, limit=1, interim=step < 6, best=best)
    assert folders(run) == {"global_step_4", "global_step_8"}
    faults.save_checkpoint(run, 10, limit=1, best=True)
    assert folders(run) == {"global_step_10"}


@pytest.mark.parametrize("content", ["", "[]", '{"step": 4}', None])
def test_without_a_note_that_can_be_read_there_is_no_best(content: str | None, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 4)
    if content is not None:
        (run / checkpoints.BEST_FILE).write_text(content)
    assert checkpoints.best(run) is None
    checkpoints.note_best(run, checkpoints.Best(3, 1.0, 1.0, 1.0, 0.0))  # whose checkpoint is not there
    assert checkpoints.best(run) is None


# A checkpoint the user names.


def test_named_checkpoint_is_accepted_also_of_another_run(tmp_path: Path) -> None:
    other, run = make_run(tmp_path / "other", 3, 6), make_run(tmp_path / "run")
    for folder, step in ((other, "6"), (run, None)):
        (folder / TRACKER_FILE).write_text("")
        trainer = {"resume_mode": "resume_path", "resume_from_path": str(other / "global_step_6")}
        checkpoints.check_resume_from(folder, trainer["resume_from_path"])
        checkpoints.find(OmegaConf.create({**trainer, "default_local_dir": str(folder)}))
        # verl reads the tracker in this mode too, and an empty one is a ValueError.
        assert verl_goes_on_from(folder) == (step and str(step_folder(folder, 6)))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("global_step_6/", "has to be global_step_N"),
        ("global_step_x", "has to be global_step_N"),
        ("global_step_3", r"holds the newer global_step_6.*resume_mode=auto"),
    ],
)
def test_a_named_folder_that_is_no_checkpoint_or_old_is_refused(name: str, line: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 3, 6)
    with pytest.raises(ValueError, match=line):
        checkpoints.check_resume_from(run, f"{run}/{name}")
