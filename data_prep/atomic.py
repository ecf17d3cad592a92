"""Output folders that are either complete or absent, and replace nothing but an earlier one of ours."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from data_prep.drafts import DRAFT, FORMER, draft_folder, keep, recover
from data_prep.ownership import DATA, Kind, OwnershipError, check_owned, remove_owned
from recipe.rerule.process.disk import named

MARKER = DATA.marker
_HERE, _EXCHANGE = -100, 2  # Linux: AT_FDCWD, RENAME_EXCHANGE


def check_writable(target: Path, overwrite: bool, kind: Kind = DATA) -> None:
    """Refuses to replace what was not asked to be replaced, or was not written by this program.

    A folder that an interrupted command had moved away is put back first (`drafts.recover`).

    Raises:
        ValueError: `target` exists and `overwrite` is false; or it is neither an empty folder nor one of
            `kind` that holds what its marker names and nothing else; or it is a link that leads nowhere.
    """
    place = _followed(target)
    recover(place)
    if not place.exists():
        return
    check_may_replace(target, overwrite)
    if not place.is_dir():
        raise ValueError(f"{target} has no {kind.marker}, so it is not replaced: give another folder")
    check_owned(target, kind)


def check_may_replace(place: Path, overwrite: bool, instead: str = "folder") -> None:
    """Refuses to replace what is at `place` unless it was asked to.

    Args:
        instead: what to give another one of.

    Raises:
        ValueError: `overwrite` is false.
    """
    if not overwrite:
        raise ValueError(f"{place} exists already: give another {instead}, or --overwrite to replace it")


@contextmanager
def new_folder(target: Path, overwrite: bool, kind: Kind = DATA) -> Iterator[Path]:
    """Yields a draft folder beside `target`, which takes its place when the block ends without an error.

    The block writes the marker of `kind`, without which the folder will not be replaced by a later one. Where
    `target` is a link to a folder, the folder it leads to is replaced and the link stays.

    After an error nothing is left and `target` is as it was. Raises ValueError as `check_writable` does, and
    DiskFullError where there is no room.
    """
    check_writable(target, overwrite, kind)
    place = _followed(target)
    with draft_folder(place) as scratch, named(target, scratch):
        yield scratch / DRAFT
        check_writable(target, overwrite, kind)
        put_in_place(scratch, scratch / DRAFT, place, check_owned(place, kind) if place.exists() else [])


def put_in_place(scratch: Path, draft: Path, target: Path, owned: Sequence[str]) -> None:
    """Let a draft take the place of `target`, and remove what was there.

    Args:
        scratch: folder of `draft_folder`, in which the draft is.
        owned: the relative paths of all files of `target`.

    Raises:
        OwnershipError: something else appeared in the old folder meanwhile; the new
            one is in place, and the message says where that file is.
    """
    former = scratch / FORMER
    if not target.exists():
        draft.rename(target)
        return
    if exchange(draft, target):
        former = draft
    else:
        target.rename(former)
        draft.rename(target)
    try:
        remove_owned(former, owned)
    except OwnershipError:
        keep(scratch)
        raise


def exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def _followed(target: Path) -> Path:
    """Where the folder itself is: a link's end. Raises ValueError for a link that leads nowhere."""
    if not target.is_symlink():
        return target
    if not target.exists():
        raise ValueError(f"{target} is a link that leads nowhere: give a folder")
    return target.resolve()
