"""Output folders that are either complete or absent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from recipe.rerule.disk import named

MARKER = "manifest.json"


def check_writable(target: Path, overwrite: bool, marker: str = MARKER) -> None:
    """Refuses to replace what was not asked to be replaced, or was not written by this program.

    Raises ValueError when `target` exists and `overwrite` is false, or when it is anything but an empty
    folder or a folder that holds the file `marker`.
    """
    if not target.exists():
        return
    if not overwrite:
        raise ValueError(f"{target} exists already: give another folder, or --overwrite to replace it")
    ours = target.is_dir() and (not any(target.iterdir()) or (target / marker).is_file())
    if not ours:
        raise ValueError(f"{target} has no {marker}, so it is not replaced: give another folder")


@contextmanager
def new_folder(target: Path, overwrite: bool, marker: str = MARKER) -> Iterator[Path]:
    """Yields a draft folder beside `target`, which takes its place when the block ends without an error.

    After an error nothing is left and `target` is as it was. Raises ValueError as `check_writable` does, and
    DiskFullError where there is no room.
    """
    check_writable(target, overwrite, marker)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch, named(target, scratch):
        draft = Path(scratch, "draft")
        draft.mkdir()
        yield draft
        check_writable(target, overwrite, marker)
        if target.exists():
            target.rename(Path(scratch, "former"))
        draft.rename(target)
