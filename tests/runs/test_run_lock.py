"""A run folder belongs to one run at a time, and a dead run holds nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.rerule.runs import run_folder

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


def test_a_lock_file_that_its_owner_just_removed_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_file_system_without_locks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with run_folder.held(tmp_path):
        pass
    assert capsys.readouterr().err.startswith(f"warning: {tmp_path} cannot be locked (No locks available)")
