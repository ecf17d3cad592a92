"""Temporary files go with their command, those of a killed one with the next command."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from recipe.rerule.process import scratch

HOLDER = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from recipe.rerule.process import scratch
with scratch.folder() as folder:
    (folder / "socket").touch()
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_LONGEST", 1000)
    return tmp_path


def test_the_folder_goes_with_the_block(temporary: Path) -> None:
    with contextlib.suppress(KeyError), scratch.folder() as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").touch()
        assert folder.parent == temporary
        raise KeyError
    assert list(temporary.iterdir()) == []


def test_a_living_commands_folder_stays_and_a_dead_ones_goes(temporary: Path) -> None:
    other = temporary / "rerule-notes"
    other.mkdir()
    (other / "mine.txt").touch()
    program = HOLDER.replace(
        "from recipe.rerule.process import scratch",
        "from recipe.rerule.process import scratch; scratch._LONGEST = 1000",
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(temporary)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    left = Path(holder.stdout.readline().strip())
    with scratch.folder():
        assert (left / "socket").exists()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert (left / "socket").exists()
    with scratch.folder():
        assert not left.exists()
    assert (other / "mine.txt").exists()


def test_sockets_find_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with scratch.folder() as folder:
        assert len(str(folder)) < 40
        assert scratch.environment(folder)["TMPDIR"] == str(folder)
