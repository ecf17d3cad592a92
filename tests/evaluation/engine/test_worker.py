"""What the worker says without vLLM, and when it ends; the golden files and e2e tests have its answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.rerule.evaluation.engine.worker import main


def start(job: Path) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", main.__module__, str(job)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


def test_an_error_is_the_only_thing_on_standard_output(tmp_path: Path):
    """A job that cannot be read fails before vLLM is imported."""
    (tmp_path / "job.json").write_text("{")
    with start(tmp_path / "job.json") as started:
        assert started.wait(60) == 1
        assert started.stdout is not None
        assert started.stderr is not None
        said = started.stdout.read()
        assert said.startswith(b'{"error": "JSONDecodeError: ')
        assert said.count(b"\n") == 1
        assert b"Traceback" in started.stderr.read()


def test_it_ends_with_its_standard_input(tmp_path: Path):
    """A job that nobody writes keeps it waiting for ever otherwise."""
    os.mkfifo(tmp_path / "job.json")
    with start(tmp_path / "job.json") as started:
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(1)
        assert started.stdin is not None
        started.stdin.close()
        assert started.wait(60) == 1
