"""Runs a command as `python -m MODULE WORDS ...` does, in this process, which imports each module once."""

import contextlib
import io
import os
import runpy
import shlex
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.golden.golden import FOLDER, ROOT

ENGINE = f"{FOLDER / 'engine'}{os.pathsep}{ROOT}"
"""PYTHONPATH of a process whose vLLM is the stand-in."""
_ENVIRONMENT = {
    "COLUMNS": "100",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": ENGINE,
}


@dataclass(frozen=True)
class Ran:
    """How a command ended: its exit code, what it printed on stdout, and its errors, warnings and notes."""

    code: int
    out: str
    said: list[str]

    @property
    def kept(self) -> dict[str, Any]:
        """What golden files keep of it."""
        return {"code": self.code, "out": [line.rstrip() for line in self.out.splitlines()], "err": self.said}


def run(line: str, folder: Path | None = None) -> Ran:
    """Run the command "MODULE WORDS ..." in `folder`, by default where this process is.

    A module other than data_prep is one of recipe.rerule, which "rerule" runs itself.
    """
    words = shlex.split(line)
    own = {"data_prep": "data_prep", "rerule": "recipe.rerule"}
    out, err, code = io.StringIO(), io.StringIO(), 0
    environment, argv, before = dict(os.environ), sys.argv, Path.cwd()
    os.environ.update(_ENVIRONMENT)
    os.chdir(folder or before)
    sys.argv = words
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(action="ignore"),
        ):
            _follow_stderr()
            module = own.get(words[0], f"recipe.rerule.{words[0]}")
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        os.chdir(before)
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)
        _follow_stderr()
    lines, kinds = err.getvalue().splitlines(), ("error: ", "warning: ", "note: ")
    said = [line for line in lines if line.startswith(kinds)]
    return Ran(code, out.getvalue(), said)


def _follow_stderr() -> None:
    """Let absl, which rouge-score imports, log to today's sys.stderr.

    Where Hydra sets up logging anew, absl closes the stream that it logs to unless it is sys.stderr: the one
    that it found when it was imported may be pytest's.
    """
    if (logging := sys.modules.get("absl.logging")) is not None:
        logging.get_absl_handler().python_handler.stream = sys.stderr


def done(line: str, folder: Path | None = None) -> Ran:
    """The same of a command that must succeed."""
    ran = run(line, folder)
    assert ran.code == 0, f"{line}\n{ran.out[-2000:]}\n{ran.said}"
    return ran


def files(folder: Path) -> list[str]:
    """All files under a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
