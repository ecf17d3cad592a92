"""A real file system that is nearly full, for tests of what happens then."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(folder: Path, kibibytes: int) -> Iterator[Path]:
    """Mount a tmpfs of that size at `folder`; the test is skipped where mounting is not permitted."""
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={kibibytes}k", "rerule-test", str(folder)]
    done = subprocess.run(["mount", *options], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a full disk needs a mount, which is not permitted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
