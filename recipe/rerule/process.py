"""The process of a command: its arguments, signals, signs of life, temporary folder and child processes.

Commands end on SIGTERM (a scheduler's) and SIGINT (Ctrl-C) with one line and exit code 128 + signal. The
first signal raises in the main thread, so that drafts and processes are removed on the way out. Later ones
change nothing; after SHUTDOWN_SECONDS the command ends in any case. A command whose reader has gone, as in
`COMMAND | head -3`, ends without a line with the code of SIGPIPE, 141.

It needs the standard library and psutil alone, so that every room may import it at no cost.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import getpass
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

# ---- arguments ----


class ArgumentParser(argparse.ArgumentParser):
    """argparse's; help texts keep their lines, and no usage stands before an error."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **settings)

    def error(self, message: str) -> NoReturn:
        """Print `error: <message>; see <command> --help` as one line on stderr, and exit with code 2."""
        self.exit(2, f"error: {' '.join(message.split())}; see {self.prog} --help\n")


def positive(text: str) -> int:
    """A whole number above 0 that 64 bits hold, as an option's type."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


RANK = "RERULE_RANK"
"""Of the environment of ranks that `training.ranks` has started. RANK alone may stand in anybody's."""


def is_rank() -> bool:
    """Whether this process is one of several ranks of a command, which checks and ends for all of them."""
    return RANK in os.environ


def not_negative(text: str) -> int:
    """A whole number of 0 or more that 64 bits hold, as an option's type."""
    if text != "0":
        return positive(text)
    return 0


def override(key: str, value: object) -> str:
    """KEY=VALUE for Hydra, which has quotes of its own, and reads 1e3, true or null as such."""
    text = str(value)
    if not re.fullmatch(r"[\w.-]*/[\w./-]*", text, re.ASCII):
        escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
        text = f"'{escaped}'"
    return f"{key}={text}"


def platform_here() -> str:
    """ "gpu" where this machine has an NVIDIA GPU that may be used, else "cpu"."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all") not in ("", "-1")
    return "gpu" if visible and any(Path("/dev").glob("nvidia[0-9]*")) else "cpu"


# ---- signals ----

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SHUTDOWN_SECONDS = 30.0
"""Most that a command goes on after a signal."""
_RETAKE_SECONDS = 0.01

_received: signal.Signals | None = None
_last_acts: list[Callable[[], object]] = []


class Stopped(KeyboardInterrupt):
    """A signal asks this process to end. Libraries treat it as Ctrl-C."""


@contextlib.contextmanager
def stoppable(advice: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Where a signal comes within the block, end with `error: stopped by SIGTERM` and exit code 143.

    Where nobody reads stdout any more, end with exit code 141.

    Args:
        advice: what to add to the line, asked for once the block is left.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    take_signals()
    try:
        with _flushed():
            yield
    except BaseException as error:
        gone = reader_gone(error)
        if gone:  # the interpreter's own flush at its end shall find somebody who reads
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        number = _signal_behind(error)
        if number is not None:
            added = advice()
            line = f"error: stopped by {number.name}{'; ' if added else ''}{added}"
            print(line, file=sys.stderr, flush=True)
            sys.exit(128 + number)
        if not gone:
            raise
        sys.exit(128 + signal.SIGPIPE)
    finally:
        if _received is None and threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                if handler is not None:  # None: set by a library in C, which is gone with what it guarded
                    signal.signal(number, handler)


def take_signals() -> None:
    """Make both signals raise in the main thread, also where a library has set handlers since.

    A signal that this process was started to ignore stays ignored, as in a shell's background jobs.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Take both signals again and again while a library may give them back to the system.

    `ray.shutdown` does so early, in C. A signal that comes before it has returned would end this process on
    the spot, with its lock and its temporary folder left behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: take_signals())
    signal.siginterrupt(signal.SIGALRM, False)  # what the library waits for goes on
    signal.setitimer(signal.ITIMER_REAL, _RETAKE_SECONDS, _RETAKE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
        take_signals()


@contextlib.contextmanager
def last_act(act: Callable[[], object]) -> Iterator[None]:
    """Do `act` before the process is ended because its shutdown takes too long, if within the block."""
    _last_acts.append(act)
    try:
        yield
    finally:
        _last_acts.remove(act)


def signal_received() -> bool:
    """Whether a signal has asked this process to end."""
    return _received is not None


def reader_gone(error: BaseException) -> bool:
    """Whether an error says that nobody reads stdout any more; other pipes and sockets do not count."""
    if not isinstance(error, BrokenPipeError):
        return False
    try:
        asked = select.poll()
        asked.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in asked.poll(0))
    except (OSError, ValueError, AttributeError):  # stdout is closed, or none of the system
        return False


@contextlib.contextmanager
def _flushed() -> Iterator[None]:
    """Write what is left in stdout's buffer, so that a reader who has gone is noticed within the block."""
    try:
        yield
    finally:
        if sys.stdout is not None and not sys.stdout.closed:
            try:
                sys.stdout.flush()
            except BrokenPipeError:
                raise
            except OSError:  # a full disk: the interpreter says so at its end
                pass


def _stop(number: int, _: FrameType | None) -> None:
    global _received
    if _received is not None:
        return
    _received = signal.Signals(number)
    limit = threading.Timer(SHUTDOWN_SECONDS, _give_up, [_received])
    limit.daemon = True
    limit.start()
    raise Stopped(_received.name)


def _signal_behind(error: BaseException) -> signal.Signals | None:
    """The signal that ended the block; whatever was raised after one is its consequence."""
    if _received is not None:
        return None if isinstance(error, SystemExit) and error.code == 128 + _received else _received
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    # Ray's own handler, between the start of ray.init and our taking over again.
    stopped_by_ray = isinstance(error, SystemExit) and error.code == signal.SIGTERM
    return signal.SIGTERM if stopped_by_ray else None


def _give_up(received: signal.Signals) -> None:
    for act in list(_last_acts):
        with contextlib.suppress(Exception):
            act()
    print(
        f"error: stopped by {received.name}; its processes did not end within {SHUTDOWN_SECONDS:.0f} s and "
        "were killed",
        file=sys.stderr,
        flush=True,
    )
    os._exit(128 + received)


# ---- signs of life ----

PROGRESS_SECONDS = 5.0
"""Between two lines of `Progress`, and before the first one: what is over sooner prints nothing."""


class Progress:
    """A context manager that says every PROGRESS_SECONDS on stderr what is being done and how far it is.

    It prints lines rather than a bar, which can be read in the log of a scheduler as well as on a terminal.
    They come from a thread of its own, so that they come during one long step too.
    """

    def __init__(self, what: str, total: int = 0, unit: str = "") -> None:
        """`what`: begins every line. `total`: how many `unit`s there are to do, 0 where that is not known."""
        self._what = what
        self._total = total
        self._unit = unit
        self._done = 0
        self._doing = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Progress:
        self._started = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def advance(self) -> None:
        """One unit is done."""
        self._done += 1

    def doing(self, what: str) -> None:
        """What is being done now, or what else the line should say."""
        self._doing = what

    def line(self) -> str:
        """As it is printed: "generate: 12 of 400 requests, 30 s, about 970 s left; ..."."""
        spent = time.monotonic() - self._started
        parts = [f"{self._done} of {self._total} {self._unit}"] if self._total else []
        parts.append(f"{spent:.0f} s")
        if 0 < self._done < self._total:
            parts.append(f"about {spent / self._done * (self._total - self._done):.0f} s left")
        return f"{self._what}: {', '.join(parts)}" + (f"; {self._doing}" if self._doing else "")

    def _tell(self) -> None:
        while not self._over.wait(PROGRESS_SECONDS):
            print(self.line(), file=sys.stderr, flush=True)


# ---- temporary folder ----

SCRATCH_PREFIX = "rerule-"
_LOCK = "in-use"
_LONGEST = 60
"""Longest path, in bytes, in which sockets still find room: their names are long, and 107 is the limit."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new temporary folder, removed when the block is left.

    verl and vLLM leave lock files, sockets and rendezvous files behind. A command that is killed cannot
    remove its folder; the next one does, since a lock that ended with its owner tells that it is not used.
    """
    usual = tempfile.gettempdir()
    parent = Path(usual if len(os.fsencode(usual)) <= _LONGEST else "/tmp")
    for path in parent.glob(f"{SCRATCH_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # in use, another user's, or already gone
            lock = os.open(path, os.O_WRONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(lock)
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=parent))
    lock = os.open(folder / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(folder / "lock", folder / _LOCK)  # found by others only once it is locked
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def scratch_environment(folder: Path) -> dict[str, str]:
    """What makes processes use this folder for temporary files, but for caches that outlast a run."""
    inductor = Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    return {
        "TMPDIR": str(folder),
        "VLLM_RPC_BASE_PATH": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(inductor)),
    }


# ---- child processes ----

GRACE_SECONDS = 10.0
"""Time for processes to end by themselves before they are killed."""
FOLLOW_SECONDS = 10.0

_SHARED_MEMORY = Path("/dev/shm")


class Started:
    """What a process has started, and what these have, so that exactly these end with a command.

    They are known by process id and time of start.

    Args:
        root: a process of ours, which counts too; None: this process, which does not, and only those count
            that are not there yet.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = psutil.Process(root)
        self._known: dict[int, psutil.Process] = {} if root is None else {root: self._root}
        before = self._root.children(recursive=True) if root is None else []
        self._others = {process.pid for process in before}
        self._shared_memory: set[Path] = set()
        self._since = time.time()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Remember them every few seconds, so that those are known who lose their parent within the block."""
        left = threading.Event()

        def follow() -> None:
            while not left.wait(FOLLOW_SECONDS):
                self.remember()

        threading.Thread(target=follow, name="rerule-processes", daemon=True).start()
        try:
            yield
        finally:
            left.set()

    def remember(self) -> None:
        """Note who is there now, and the names in /dev/shm that they hold.

        To be called before a shutdown: who loses its parent is no longer found.
        """
        with self._lock, contextlib.suppress(psutil.NoSuchProcess):
            found = [one for one in self._root.children(recursive=True) if one.pid not in self._others]
            self._known |= {process.pid: process for process in found}
            for pid in self._known:
                with contextlib.suppress(OSError):  # it has ended
                    self._shared_memory |= set(_mapped(pid))

    def end(self, grace: float = GRACE_SECONDS) -> None:
        """Wait up to `grace` seconds for them to end, then kill the rest, and remove what they left in
        /dev/shm: a killed process cannot remove its semaphores."""
        self.remember()
        deadline = time.monotonic() + grace
        while self._alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.kill()
        for path in self._shared_memory | _weights_of_nobody(self._since):
            path.unlink(missing_ok=True)

    def kill(self) -> None:
        """SIGKILL all of them, those started since included."""
        self.remember()
        alive = self._alive()
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(alive, timeout=GRACE_SECONDS)

    def _alive(self) -> list[psutil.Process]:
        """Those who are there and no zombies; a reused process id is another process."""
        alive = []
        for process in list(self._known.values()):
            with contextlib.suppress(psutil.Error):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
        return alive


def _mapped(pid: int) -> Iterator[Path]:
    """Named shared memory that a process has mapped, semaphores among them.

    Found by inode, since a semaphore is mapped under a first name that is gone.
    """
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    inodes = {int(line.split(maxsplit=5)[4]) for line in lines if "/dev/shm/" in line}
    return (path for path in _SHARED_MEMORY.iterdir() if inodes and path.stat().st_ino in inodes)


def _weights_of_nobody(since: float) -> set[Path]:
    """Shared memory of the user in which verl sends weights, newer than `since`, that no process has mapped.

    It is there for a second, so that nobody remembers it of a sender that was killed meanwhile.
    """
    found = set()
    for path in _SHARED_MEMORY.glob("verl_weights_*"):
        with contextlib.suppress(OSError):  # it has gone
            if path.stat().st_uid == os.getuid() and path.stat().st_mtime >= since:
                found.add(path)
    for pid in psutil.pids() if found else []:
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            found -= set(_mapped(pid))
    return found
