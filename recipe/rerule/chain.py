"""Commands one after the other, each in its own process: what is finished, how far it is, what it printed.

`rerule forget`, `rerule tune` and the scripts of examples/ are lists of parts. All that the command of a part
prints goes to OUT/PART.log (PART.1.log, ... for each further start). A reader sees each command, its
warnings, the lines that the part shows, and a line of progress with the time left.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipe.rerule import io, process
from recipe.rerule.runs import run_folder

TOLD = r"(rows:|stage \d: \d+ steps|memory:|a checkpoint takes|start of stage 2).*"
"""Lines that a reader wants: rows that were written, sizes and memory of a check, what stage 1 has made."""
_WARNING = re.compile(r"warning: (.*)")
_OF_WORKER = re.compile(r"(\x1b\[\d+m)?\([\w.:]+ pid=\d+[^)]*\)(\x1b\[0m)? ")
"""A Ray worker's lines begin with its name, which may have a colour."""
_SHARE = re.compile(r"step (\d+)/(\d+) .*|Epoch (\d+)/(\d+): +(\d+)%")
_LEFT = re.compile(r"(.*?), .*about (\d+) s left")
_BAR = re.compile(r"(.+?: +\d+%)\|.*\[[\d:]+<([\d:]+),")
"""A bar of tqdm, with its own time left."""
_LOOK_SECONDS, _LINE_SECONDS, _WIDTH = 0.5, 60.0, 110
"""Between two looks at a log, and two lines of progress in a file; characters of that line on a terminal."""


@dataclass(frozen=True)
class Part:
    """A command of a chain.

    Attributes:
        name: of its log, without suffix, in the folder of the chain.
        does: what it does, for the reader.
        words: those after `python -m`.
        finished: whether its result is there, so that it is not run again.
        shows: pattern of the lines of its output that a reader wants.
        anew: a run folder that a killed run cannot be gone on with: what it left is removed before all parts.
    """

    name: str
    does: str
    words: Sequence[str]
    finished: bool
    shows: str = TOLD
    anew: Path | None = None

    @property
    def command(self) -> str:
        """As a shell reads it."""
        return shlex.join(["python", "-m", *self.words])


def printed(parts: Sequence[Part]) -> str:
    """The commands, each behind a comment; one that is finished is a comment too."""
    lines = (
        f"# {one.does}, finished before\n# {one.command}" if one.finished else f"# {one.does}\n{one.command}"
        for one in parts
    )
    return "\n".join(lines)


def followed(plan: Callable[[], list[Part]], out: Path, doing: list[str]) -> Iterator[tuple[Part, int]]:
    """Run the parts of a plan in their order: each, with its exit code, once it has ended.

    Args:
        plan: all parts, as far as is known when it is called, which is before each part.
        out: the folder of the chain, which is there.
        doing: gets each part as it begins.

    Raises ValueError, OSError: what is in the way of a part is no unfinished run of ours, or goes on.
    """
    started, warned = time.monotonic(), set[str]()
    for part in plan():  # before all checks, which would refuse such a folder
        if part.anew is not None and not part.finished and os.path.lexists(part.anew):
            run_folder.remove_unfinished(part.anew)
            print(f"removed {part.anew}, which an interrupted run left unfinished", flush=True)
    for number in itertools.count():
        parts = plan()
        if number == len(parts):
            return
        part = parts[number]
        doing.append(f"{number + 1}/{len(parts)} {part.does}")
        told = ", finished before" if part.finished else ""
        print(f"[{time.monotonic() - started:4.0f} s] {doing[-1]}{told}", flush=True)
        yield part, 0 if part.finished else run_part(out, part, warned)


def logs(out: Path, part: str) -> list[Path]:
    """The logs of a part that are there."""
    return list(itertools.takewhile(os.path.lexists, (_log(out, part, n) for n in itertools.count())))


def _log(out: Path, part: str, number: int) -> Path:
    return out / (f"{part}.{number}.log" if number else f"{part}.log")


def run_part(out: Path, part: Part, warned: set[str]) -> int:
    """Run a part and show how far it is: its exit code, with one line on stderr where that is not 0."""
    log = _log(out, part.name, len(logs(out, part.name)))
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"  {part.command} > {shlex.quote(f'{log}')} 2>&1", flush=True)
    progress = Progress(warned, part.shows)
    with log.open("xb") as written, log.open("rb") as read:
        words = [sys.executable, "-m", *part.words]
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=written, stderr=written)
        started = process.Started(child.pid)
        with started.followed(), process.last_act(started.kill):
            try:
                while child.poll() is None:
                    time.sleep(_LOOK_SECONDS)
                    progress.show(read.read())
            except process.Stopped as stopped:  # Ctrl-C reaches the child too, and a second time is nothing
                child.send_signal(signal.Signals[str(stopped)])
                child.wait()
                raise
            finally:
                started.end(grace=0)
                progress.end(read.read())
    if not (code := child.returncode):
        return 0
    lines = re.split(r"[\r\n]+", log.read_text("utf-8", errors="replace"))
    ended = f"exit code {code}" if code > 0 else signal.Signals(-code).name
    told = [f"error: {part.does} ended with {ended}", *(one for one in lines if one.startswith("error: "))]
    print(f"{told[-1]}; the whole output is in {log}", file=sys.stderr, flush=True)
    return code if code > 0 else 128 - code


class Progress:
    """How far a part is: the time so far and, where its log allows it, the time left and what is done now.

    On a terminal it is one line, written again and again; in a file a line a minute.

    Args:
        warned: the warnings that were passed on, since a check and its training give the same ones.
        shows: pattern of the lines that are passed on.
    """

    def __init__(self, warned: set[str], shows: str = TOLD) -> None:
        self._shows = re.compile(shows)
        self._started = self._shown = time.monotonic()
        self._warned, self._rest, self._doing = warned, b"", ""
        self._first: tuple[float, float] | None = None  # a time, and the share that was done then
        self._end = 0.0  # when it will have ended, as far as is known
        self._clear = "\r\x1b[K" if sys.stdout.isatty() else ""

    def show(self, more: bytes) -> None:
        """After so much more of the log."""
        *lines, self._rest = re.split(rb"[\r\n]", self._rest + more)
        for line in lines:
            self._read(line.decode(errors="replace"))
        now = time.monotonic()
        left = f", about {self._end - now:.0f} s left" if self._end > now else ""
        line = f"  {now - self._started:.0f} s{left}{'; ' if self._doing else ''}{self._doing}"
        if self._clear:
            print(f"{self._clear}{line[:_WIDTH]}", end="", flush=True)
        elif now - self._shown >= _LINE_SECONDS:
            self._shown = now
            print(line, flush=True)

    def end(self, more: bytes) -> None:
        """After the last of the log."""
        self.show(more)
        print(end="\n" if self._clear else "", flush=True)

    def _read(self, line: str) -> None:
        now, line = time.monotonic(), _OF_WORKER.sub("", line, count=1)
        if found := _WARNING.fullmatch(line):
            if found[1] not in self._warned:
                self._warned.add(found[1])
                print(end=self._clear, flush=True)
                io.warn(found[1])
        elif found := _LEFT.match(line):
            self._doing, self._end = found[1], now + int(found[2])
        elif found := _BAR.match(line):
            parts = reversed(found[2].split(":"))
            self._doing, self._end = found[1], now + sum(int(part) * 60**i for i, part in enumerate(parts))
        elif self._shows.fullmatch(line):
            print(f"{self._clear}  {line}", flush=True)
        if found := _SHARE.match(line):
            step, of, epoch, epochs, percent = (int(group or 0) for group in found.groups())
            share = step / of if of else (epoch - 1 + percent / 100) / epochs
            self._doing, self._first = found[0], self._first or (now, share)
            if gained := share - self._first[1]:
                self._end = now + (now - self._first[0]) / gained * (1 - share)
