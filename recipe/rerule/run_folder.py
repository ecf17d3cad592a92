"""Whether a run can write into its folder, found before anything starts."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


class RunFolderError(ValueError):
    """A run folder that cannot be written to; the message is one line and says what to do."""


def check_writable(folder: str | None, key: str = "trainer.default_local_dir") -> None:
    """Refuse a run folder that is a file or that nothing can be written to. Leaves nothing behind.

    A temporary folder is made and removed: permissions alone do not tell on read-only or full file systems.

    Raises:
        RunFolderError: naming `key`, the folder and the reason.
    """
    if not folder or not folder.strip():
        raise RunFolderError(f"{key} is empty; give the folder of the run")
    place = Path(folder).absolute()
    new = []
    while not os.path.lexists(place):
        new.append(place.name)
        place = place.parent
    if not place.is_dir():
        kind = "a file" if place.exists() else "a link to nothing"
        raise RunFolderError(f"{key} is {folder}, but {place} is {kind}; give another folder")
    if any(len(os.fsencode(name)) > os.pathconf(place, "PC_NAME_MAX") for name in new):
        raise RunFolderError(f"{key} is {folder}, but no folder can have this name; give a shorter one")
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=".rerule-"):
            pass
    except OSError as error:
        raise RunFolderError(
            f"{key} is {folder}, but nothing can be written to {place} ({error.strerror}); give another"
        ) from None
