"""The process of a command: arguments, signals, signs of life, temporary folder, child processes."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import psutil
import pytest

from recipe.rerule import io, process
from recipe.rerule.process import ArgumentParser, Progress, Started, positive

# ---- arguments ----


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--n", "x\ny"], "argument --n: 'x\\ny' is no whole number above 0; see tool --help"),
        (["--n", "1", "a\nb"], "unrecognized arguments: a b; see tool --help"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: list[str], line: str, capsys: Any) -> None:
    """tests/refused tries more."""
    parser = ArgumentParser(prog="tool", epilog="examples:\n  tool --n 3\n")
    parser.add_argument("--n", type=positive, required=True)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {line}\n"


# ---- signals ----

PROGRAM = """
import ctypes, sys, time
from pathlib import Path
from recipe.rerule import io, process
process.SHUTDOWN_SECONDS, MARK = 1.0, Path(sys.argv[1])
with {context}:
    try:
        print("ready", flush=True)
        time.sleep(60)
    {then}
"""
PLAIN, TOUCH = "process.stoppable()", "finally: MARK.touch()"
STOPPED: dict[str, tuple[str, str, signal.Signals, str]] = {
    "advice": (f"{PLAIN}, process.stoppable(lambda: 'go on')", TOUCH, signal.SIGTERM, "; go on"),
    "Ctrl-C": (PLAIN, TOUCH, signal.SIGINT, ""),
    "what a library makes of it": (
        f"{PLAIN}, io.one_line(Exception, code=1)",
        *("except KeyboardInterrupt: MARK.touch(); raise OSError", signal.SIGTERM, ""),
    ),
    "more signals": (
        *(PLAIN, "finally: print('ending', flush=True); time.sleep(0.5); MARK.touch()"),
        *(signal.SIGTERM, ""),
    ),
    "more signals, which a library gives back to the system": (
        PLAIN,
        """finally:
        with process.signals_kept():
            ctypes.CDLL(None).signal(15, None)
            time.sleep(0.3)
            print("ending", flush=True)
            time.sleep(0.5)
        MARK.touch()""",
        *(signal.SIGTERM, ""),
    ),
    "a shutdown that hangs": (
        *(f"{PLAIN}, process.last_act(MARK.touch)", "finally: time.sleep(60)", signal.SIGTERM),
        "; its processes did not end within 1 s and were killed",
    ),
}


@pytest.mark.parametrize("case", STOPPED)
def test_a_signal_is_one_line_and_its_exit_code(case: str, tmp_path: Path) -> None:
    """The way out is left to the code, and more signals do not disturb it."""
    context, then, number, added = STOPPED[case]
    words = [sys.executable, "-c", PROGRAM.format(context=context, then=then), str(tmp_path / "mark")]
    one = subprocess.Popen(words, stdout=-1, stderr=-1, text=True)
    assert one.stdout is not None
    assert one.stdout.readline() == "ready\n"
    at = time.monotonic()
    one.send_signal(number)
    if case.startswith("more signals"):
        assert one.stdout.readline() == "ending\n"
        for more in process.SIGNALS:
            one.send_signal(more)
    _, err = one.communicate(timeout=20)
    assert (one.returncode, err) == (128 + number, f"error: stopped by {number.name}{added}\n")
    assert time.monotonic() - at < 10
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize(("code", "ended"), [(0, 0), (2, 2), (signal.SIGTERM, 143)])
def test_other_exits_pass_and_that_of_rays_handler_counts(code: int, ended: int) -> None:
    before = [signal.getsignal(number) for number in process.SIGNALS]
    with pytest.raises(SystemExit) as exit_, process.stoppable():
        sys.exit(code)
    assert exit_.value.code == ended
    assert [signal.getsignal(number) for number in process.SIGNALS] == before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with process.stoppable():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("body", "buffered"),
    [
        ("print('x')", True),
        ("print('x')", False),
        ("with io.one_line(Exception, code=1): print('x' * 10**6)", True),  # more than a buffer
        ("sys.exit(3 if print('x') else 4)", True),
    ],
)
def test_a_command_whose_reader_has_gone_ends_without_a_line(body: str, buffered: bool) -> None:
    code = "import sys\nfrom recipe.rerule import io, process\n"
    code += f"with process.stoppable():\n  with process.stoppable():\n    {body}"
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"PYTHONUNBUFFERED": "" if buffered else "1"}
    with os.fdopen(writing) as output:
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, stdout=output, stderr=subprocess.PIPE, env=environment)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_another_broken_pipe_is_an_error_still(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = socket.socketpair()
    other.close()
    with pytest.raises(BrokenPipeError) as raised, process.stoppable():
        one.sendall(b"x")
    one.close()
    assert io.fail(raised.value, 2) == 2
    assert capsys.readouterr().err == "error: broken pipe\n"


# ---- signs of life ----


def test_a_line_every_few_seconds_says_how_far_it_is(monkeypatch: Any, capsys: Any) -> None:
    with Progress("report") as quick:
        quick.doing("a figure")
        assert quick.line() == "report: 0 s; a figure"
    assert capsys.readouterr().err == ""  # what is quick says nothing
    monkeypatch.setattr(process, "PROGRESS_SECONDS", 0.05)
    with Progress("generate", 40, "requests") as work:
        for _ in range(10):
            work.advance()
        work.doing("1 failed")
        time.sleep(0.2)
        work._started = time.monotonic() - 20
        assert work.line() == "generate: 10 of 40 requests, 20 s, about 60 s left; 1 failed"
    lines = capsys.readouterr().err.splitlines()
    told = r"generate: 10 of 40 requests, [0-9]+ s, about [0-9]+ s left; 1 failed"
    assert 1 <= len(lines) <= 5
    assert all(re.fullmatch(told, line) for line in lines)


# ---- temporary folder ----

HOLDER = """
import sys, time
from recipe.rerule import process
process._LONGEST = 1000
with process.scratch_folder() as folder:
    (folder / "socket").touch()
    print(folder, flush=True)
    time.sleep(60)
"""


def test_a_folder_goes_with_its_block_and_that_of_a_dead_command_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(process, "_LONGEST", 1000)
    (tmp_path / "rerule-notes").mkdir()
    (tmp_path / "rerule-notes" / "mine.txt").touch()
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=-1, text=True, env=environment)
    assert holder.stdout is not None
    left = Path(holder.stdout.readline().strip())
    with contextlib.suppress(KeyError), process.scratch_folder() as folder:
        (folder / "deep").mkdir()
        assert (folder.parent, (left / "socket").exists()) == (tmp_path, True)
        raise KeyError
    assert set(tmp_path.iterdir()) == {left, tmp_path / "rerule-notes"}
    holder.kill()
    holder.communicate()
    with process.scratch_folder():
        assert not left.exists()
    assert (tmp_path / "rerule-notes" / "mine.txt").exists()


def test_sockets_find_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with process.scratch_folder() as folder:
        assert len(str(folder)) < 40
        assert process.scratch_environment(folder)["TMPDIR"] == str(folder)


# ---- child processes ----

# A process with a child of its own, that holds a semaphore as a spawning multiprocessing context makes it.
PARENT = """
import multiprocessing, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
semaphore = multiprocessing.get_context("spawn").Semaphore()
print(child.pid, semaphore._semlock.name, flush=True)
time.sleep(60)
"""


def parent() -> tuple[subprocess.Popen[str], int, Path]:
    one = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert one.stdout is not None
    child, semaphore = one.stdout.readline().split()
    return one, int(child), Path("/dev/shm") / f"sem.{semaphore.removeprefix('/')}"


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_orphans_and_semaphores_go_and_what_was_there_before_stays() -> None:
    other, other_child, other_semaphore = parent()
    of_command = Started()
    one, child, semaphore = parent()
    of_command.remember()
    one.kill()
    one.wait()
    assert (gone(child), semaphore.exists()) == (False, True)
    of_command.end(grace=0)
    assert (gone(child), semaphore.exists()) == (True, False)
    assert (gone(other.pid), gone(other_child), other_semaphore.exists()) == (False, False, True)
    Started(other.pid).end(grace=0)
    assert (gone(other.pid), gone(other_child), other_semaphore.exists()) == (True, True, False)
    for left in (one, other):
        left.communicate()


def test_weights_that_a_killed_sender_left_go_and_those_in_use_stay() -> None:
    names = [f"verl_weights_{os.getpid()}_{name}" for name in ("before", "left", "used")]
    before, left, used = (Path("/dev/shm") / name for name in names)
    before.write_bytes(b"0")
    os.utime(before, (0, 0))
    of_command = Started()
    left.write_bytes(b"0")
    memory = shared_memory.SharedMemory(used.name, create=True, size=8)
    try:
        of_command.end(grace=0)
        assert [path.exists() for path in (before, left, used)] == [True, False, True]
    finally:
        memory.close()
        memory.unlink()
        before.unlink()


def test_those_that_end_by_themselves_are_waited_for() -> None:
    of_command = Started()
    one = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.2)"])
    at = time.monotonic()
    of_command.end(grace=20)
    assert 0.05 < time.monotonic() - at < 15
    assert one.wait() == 0
