"""Runs a command as `python -m MODULE WORDS ...` does, in this process, which imports each module once."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.golden.golden import FOLDER, ROOT, neutral

_SAID = ("error: ", "warning: ", "note: ")
"""How the lines on stderr begin that are kept: all others tell of progress."""
_ENVIRONMENT = {
    "COLUMNS": "100",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": f"{FOLDER / 'engine'}{os.pathsep}{ROOT}",  # vLLM's process is the stand-in's
}


@dataclass(frozen=True)
class Ran:
    """How a command ended: its exit code, and what it printed on stdout and stderr."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> list[str]:
        """Errors, warnings and notes."""
        return [line for line in self.err.splitlines() if line.startswith(_SAID)]

    def kept(self, work: Path) -> dict[str, Any]:
        """What golden files keep of it."""
        lines = [line.rstrip() for line in neutral(self.out, work).splitlines()]
        return {"code": self.code, "out": lines, "err": [neutral(line, work) for line in self.said]}


def run(module: str, *words: object, folder: Path | None = None) -> Ran:
    """Run a command in `folder`, by default where this process is."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    environment, argv, before = dict(os.environ), sys.argv, Path.cwd()
    os.environ.update(_ENVIRONMENT)
    os.chdir(folder or before)
    sys.argv = [module, *map(str, words)]
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(action="ignore"),
        ):
            _follow_stderr()
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        os.chdir(before)
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)
        _follow_stderr()
    return Ran(code, out.getvalue(), err.getvalue())


def _follow_stderr() -> None:
    """Let absl, which rouge-score imports, log to today's sys.stderr.

    Where Hydra sets up logging anew, absl closes the stream that it logs to unless it is sys.stderr: the one
    that it found when it was imported may be pytest's.
    """
    if (logging := sys.modules.get("absl.logging")) is not None:
        logging.get_absl_handler().python_handler.stream = sys.stderr


def done(module: str, *words: object, folder: Path | None = None) -> Ran:
    """The same of a command that must succeed."""
    ran = run(module, *words, folder=folder)
    assert ran.code == 0, f"{module} {' '.join(map(str, words))}\n{ran.out[-2000:]}\n{ran.err[-2000:]}"
    return ran


def refused(ran: Ran, named: Sequence[str]) -> dict[str, Any]:
    """What golden files keep of a refusal, whose words may change: that it is one line, and what it names."""
    errors = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    return {
        "code": ran.code,
        "errors": len(errors),
        "names": [part for part in named if any(part in line for line in errors)],
        "out": len(ran.out.splitlines()),
    }


def files(folder: Path) -> Sequence[str]:
    """All files under a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
