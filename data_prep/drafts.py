"""Folders for drafts, beside what they will replace: gone at the end, and known after a kill.

.NAME.draft-XXXX/owner.json   {"format", "format_version", "target", "host"}; locked while its process lives
.NAME.draft-XXXX/draft/       what will take the place of NAME
.NAME.draft-XXXX/former/      what was at NAME, where the file system cannot exchange the two in one step
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from data_prep.ownership import read_record

OWNER, DRAFT, FORMER = "owner.json", "draft", "former"
_FORMAT = "rerule/draft"
_LONGEST = 200
"""Characters of a target's name in its draft's: most file systems take 255 bytes."""


@contextmanager
def draft_folder(target: Path) -> Iterator[Path]:
    """An empty folder on the file system of `target`, removed at the end with all that is in it then.

    What an earlier process left there for the same target, when it was killed, is removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    recover(target)
    folder = target.with_name(f"{_prefix(target)}{uuid.uuid4().hex[:8]}")
    folder.mkdir(mode=0o700)
    try:
        with _locked(folder, target):
            (folder / DRAFT).mkdir()
            yield folder
            _remove(folder)
    except BaseException:
        _finish(folder, target)
        raise


def keep(folder: Path) -> None:
    """Leave a folder for drafts where it is, for its user to look into."""
    (folder / OWNER).unlink(missing_ok=True)


def recover(target: Path) -> None:
    """Put back what a killed process had moved away from `target`, and remove the drafts of such processes.

    Left alone is every folder whose process may be alive, runs on another machine, or is none of ours.
    """
    beside = sorted(target.parent.iterdir()) if target.parent.is_dir() else []
    for folder in beside:
        if folder.name.startswith(_prefix(target)) and _is_abandoned(folder, target):
            _finish(folder, target)


def _prefix(target: Path) -> str:
    return f".{target.name[:_LONGEST]}.draft-"


def _finish(folder: Path, target: Path) -> None:
    """Put back what was moved away from `target`, and remove the rest: after a kill or an error."""
    former = folder / FORMER
    if former.exists() and (folder / DRAFT).exists():
        if os.path.lexists(target):
            print(f"warning: {former} is what a command that ended early found at {target}", file=sys.stderr)
            return
        former.rename(target)
        print(f"warning: {target} is back, which a command that ended early had moved away", file=sys.stderr)
    _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder for drafts; one that `keep` was called for stays."""
    if (folder / OWNER).exists() or not any(folder.iterdir()):
        for name in (DRAFT, FORMER):
            shutil.rmtree(folder / name, ignore_errors=True)
        # The owner goes last: until then the next command knows what is left here.
        (folder / OWNER).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def _locked(folder: Path, target: Path) -> Iterator[None]:
    """Say whose draft this is, under a lock that ends with this process at the latest."""
    with open(folder / OWNER, "x", encoding="utf-8") as file:
        with suppress(OSError):  # without locks no other process takes this one for dead
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Written under the lock: an owner that can be read and is not locked is dead.
        file.write(json.dumps(_owner(target)))
        file.flush()
        yield


def _owner(target: Path) -> dict[str, Any]:
    return {"format": _FORMAT, "format_version": 1, "target": target.name, "host": platform.node()}


def _is_abandoned(folder: Path, target: Path) -> bool:
    owner = folder / OWNER
    if folder.is_symlink() or not owner.is_file() or read_record(owner) != _owner(target):
        return False
    if {path.name for path in folder.iterdir()} - {OWNER, DRAFT, FORMER}:
        return False
    try:
        with owner.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
