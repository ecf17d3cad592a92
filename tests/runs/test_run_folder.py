"""A run writes only where a run of its own was, one at a time, and only what runs write is removed."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from omegaconf import OmegaConf

from recipe.rerule.runs import checkpoints, run_folder, run_log
from tests.data_prep.raw_files import contents


def put(folder: Path, *names: str, text: str = "mine") -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("stage", [1, 2])
def test_other_files_of_a_users_may_be_there(stage: Any, tmp_path: Path) -> None:
    """tests/refused has those under a name that runs use."""
    put(tmp_path / "run", "notes.txt", "config.yaml.bak")
    run_folder.check(tmp_path / "run", stage)
    run_folder.begin(tmp_path / "run", stage)
    run_folder.check(tmp_path / "run", stage)
    with pytest.raises(ValueError, match="is not of a run of stage"):
        run_folder.check(tmp_path / "run", 3 - stage)


def test_a_finished_stage_1_and_a_marker_of_another_format(tmp_path: Path) -> None:
    run_folder.begin(tmp_path / "run", 1)
    put(tmp_path / "run", "model/config.json")
    with pytest.raises(ValueError, match="already holds the model of a finished stage 1"):
        run_folder.check(tmp_path / "run", 1)
    marker = tmp_path / "run" / "run.json"
    marker.write_text(marker.read_text().replace('"format_version": 2', '"format_version": 1'))
    with pytest.raises(ValueError, match=r"the model there is not of a run of stage 1"):
        run_folder.check(tmp_path / "run", 1)


def test_a_full_disk_at_the_start_leaves_no_empty_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            run_folder.begin(tmp_path / "run", 1)
    run_folder.check(tmp_path / "run", 1)
    run_folder.begin(tmp_path / "run", 1)
    run_folder.check(tmp_path / "run", 1)


MORE = "records/metrics.jsonl global_step_1/data.pt model/config.json notes.txt records/notes.txt config.yaml"


@pytest.mark.parametrize("more", [None, *MORE.split()])
def test_what_a_start_leaves_that_failed_before_its_first_step_is_no_run(
    more: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "")
    folder = tmp_path / "run"
    assert not run_folder.is_begun(folder)
    run_folder.begin(folder, 1)
    run_log.start(OmegaConf.create({"trainer": {"default_local_dir": str(folder)}}))
    put(folder, "records/metrics.jsonl", "run.lock", ".hydra/config.yaml", text="")
    run_folder.check(folder, 1)
    if more is not None:
        put(folder, more)
    assert run_folder.is_begun(folder) == (more is not None)
    with pytest.raises(ValueError, match="is not of a run of stage 2"):
        run_folder.check(folder, 2)


def test_verls_dumps_go_where_nothing_else_is(tmp_path: Path) -> None:
    key = "trainer.validation_data_dir"
    run_folder.check_dumps(key, tmp_path / "none", resumed=False)
    put(tmp_path / "dumps", "3.jsonl")
    run_folder.check_dumps(key, tmp_path / "dumps", resumed=True)
    with pytest.raises(ValueError, match=r"dumps, which holds 3\.jsonl already"):
        run_folder.check_dumps(key, tmp_path / "dumps", resumed=False)
    put(tmp_path / "dumps", "notes.txt")
    with pytest.raises(ValueError, match=r"which holds notes\.txt already"):
        run_folder.check_dumps(key, tmp_path / "dumps", resumed=True)


UNFINISHED = """
    config.yaml records/metrics.jsonl records/metrics.1.jsonl records/prompts.jsonl records/rollouts/3.jsonl
    lora_adapter/adapter_model.safetensors global_step_2.removed/complete.json global_step_3/data.pt
    global_step_3/actor/model_world_size_1_rank_0.pt global_step_3/actor/huggingface/tokenizer.json
    global_step_3/actor/huggingface/model-00001-of-00002.safetensors.tmp global_step_3/replay/state.json.tmp
    global_step_3/actor/huggingface/config.json.tmp global_step_3/actor/lora_adapter/adapter_config.json
"""


def test_an_unfinished_run_is_removed_whole(tmp_path: Path) -> None:
    run_folder.begin(tmp_path / "run", 2)
    put(tmp_path / "run", *UNFINISHED.split())
    put(tmp_path, "beside.txt")
    before = contents(tmp_path)
    with run_folder.held(tmp_path / "run"), pytest.raises(run_folder.BusyError, match="another --out"):
        run_folder.remove_unfinished(tmp_path / "run")
    assert contents(tmp_path) == {name: text for name, text in before.items() if name != "run/run.lock"}
    run_folder.remove_unfinished(tmp_path / "run")
    assert contents(tmp_path) == {"beside.txt": b"mine"}


OTHER_FORMAT = '{"format": "rerule/run", "format_version": 1, "stage": 2}'
NOTES = """
    notes.txt records/notes.txt global_step_3/notes.txt global_step_3/actor/notes.txt model/a.bin
    lora_adapter/notes.txt
"""
MARKERS = (None, "{", "[]", '{"format": "mine", "stage": 1}', OTHER_FORMAT)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        *((name, "mine", f"no run wrote .*/run/{name}") for name in NOTES.split()),
        *(("run.json", marker, "so it is kept") for marker in MARKERS),
    ],
)
def test_an_unfinished_folder_without_its_marker_or_with_other_files_is_kept(
    name: str, text: str | None, reason: str, tmp_path: Path
) -> None:
    run_folder.begin(tmp_path / "run", 2)
    put(tmp_path / "run", *UNFINISHED.split())
    if text is None:
        (tmp_path / "run" / name).unlink()
    else:
        put(tmp_path / "run", name, text=text)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=reason):
        run_folder.remove_unfinished(tmp_path / "run")
    assert contents(tmp_path) == before


def test_a_checkpoint_with_a_users_file_outlives_rotation_and_a_new_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def names() -> list[str]:
        return sorted(path.name for path in tmp_path.glob("global_step_*"))

    for step in (1, 2, 3, 4):
        put(tmp_path, f"global_step_{step}/actor/model_world_size_1_rank_0.pt")
        checkpoints.finish(tmp_path, step)
    put(tmp_path, "global_step_1/evaluation.txt")
    checkpoints.keep(tmp_path, 2)
    assert names() == ["global_step_1", "global_step_3", "global_step_4"]
    assert f"no run wrote {tmp_path / 'global_step_1' / 'evaluation.txt'}" in capsys.readouterr().err
    checkpoints.begin(tmp_path, 1)
    checkpoints.begin(tmp_path, 4)
    assert names() == ["global_step_1.kept", "global_step_3"]
    assert (tmp_path / "global_step_1.kept" / "evaluation.txt").read_text() == "mine"
    assert "is now" in capsys.readouterr().err
    put(tmp_path, "global_step_1/evaluation.txt")
    put(tmp_path, "global_step_2/retain_weight.txt")  # of method=pdu
    checkpoints.begin(tmp_path, 1)
    checkpoints.begin(tmp_path, 2)
    assert names() == ["global_step_1.kept", "global_step_1.kept1", "global_step_3"]


# One run at a time.

HOLDER = """
import sys, time
from recipe.rerule.runs import run_folder
with run_folder.held(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    owner = rf"run is in use by another run \(process {holder.pid} on {socket.gethostname()}\)"
    with pytest.raises(run_folder.BusyError, match=owner), run_folder.held(folder):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert (folder / run_folder.LOCK).exists()
    with run_folder.held(folder):
        assert f"process {os.getpid()} " in (folder / run_folder.LOCK).read_text()
    assert list(folder.iterdir()) == []


STARTER = """
import sys
from omegaconf import OmegaConf
from recipe.rerule import process
from recipe.rerule.runs import run_folder
from recipe.rerule.training import ranks
process.FOLLOW_SECONDS, sys.executable = 0.05, sys.argv[2]
with run_folder.held(sys.argv[1]) as lock:
    ranks.start(OmegaConf.create({"trainer": {"n_gpus_per_node": 2, "nnodes": 1}}), "a", "b", print, lock)
"""


def test_ranks_end_after_their_launcher_and_keep_the_folder_after_their_command(tmp_path: Path) -> None:
    """The launcher here is a shell, and its rank sleeps."""
    folder, told = tmp_path / "run", tmp_path / "told"
    launcher = (
        put(tmp_path, "launcher", text=f"#!/bin/bash\nsleep 60 &\necho $$ $! > {told}\nwait\n") / "launcher"
    )
    launcher.chmod(0o755)

    def started() -> tuple[subprocess.Popen[str], psutil.Process, psutil.Process]:
        told.write_text("")
        words = [sys.executable, "-c", STARTER, str(folder), str(launcher)]
        command = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        while not (found := told.read_text()).endswith("\n"):
            assert command.poll() is None
            time.sleep(0.05)
        owner, rank = (psutil.Process(int(pid)) for pid in found.split())
        time.sleep(0.5)  # it is looked for every 0.05 s
        return command, owner, rank

    command, owner, rank = started()
    owner.kill()
    assert "RankError: a rank of b failed (exit code -9)" in command.communicate(timeout=60)[1]
    assert not rank.is_running()
    command, owner, rank = started()
    command.kill()
    command.wait()
    said = rf"run is in use by another run \(process {owner.pid} on "
    with pytest.raises(run_folder.BusyError, match=said), run_folder.held(folder):
        pass
    for one in (owner, rank):
        one.kill()
    command.communicate()
    psutil.wait_procs([owner, rank], timeout=10)
    with run_folder.held(folder):
        pass


def test_a_lock_file_that_its_owner_just_removed_is_not_the_lock(tmp_path: Path, monkeypatch: Any) -> None:
    """Between opening and locking, the owner ends and a third run begins: there are then two files."""
    real, tried = fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        tried.append(descriptor)
        if len(tried) == 1:
            (tmp_path / run_folder.LOCK).unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with run_folder.held(tmp_path), pytest.raises(run_folder.BusyError), run_folder.held(tmp_path):
        pass
    assert len(tried) == 3


def test_a_file_system_without_locks_is_a_warning(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    with run_folder.held(tmp_path):
        pass
    assert capsys.readouterr().err.startswith(f"warning: {tmp_path} cannot be locked (No locks available)")


def test_what_a_run_was_started_with_is_written_once(tmp_path: Path) -> None:
    run_folder.begin(tmp_path, 2)
    marker = tmp_path / run_folder.MARKER
    for hashes, written in ((["ab"], True), (["ab"], False), (["cd"], True)):
        before = marker.stat().st_ino  # each write is a new file
        run_folder.keep_identity(tmp_path, {"data.train_files": hashes})
        assert (marker.stat().st_ino != before) == written
        assert run_folder.identity_of(tmp_path) == {"data.train_files": hashes}
