"""Which folders a command may replace: those in which a file of ours names everything that is there.

That file, the folder's marker, is JSON with `format`, `format_version` and `contents`: the relative path of
every file of the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT_VERSION = 2


class OwnershipError(ValueError):
    """A folder is not ours to replace; the message is one line and says what to do."""


@dataclass(frozen=True)
class Kind:
    """A kind of folder that commands write.

    Attributes:
        format: the marker's `format`, such as "rerule/data".
        marker: name of the marker.
    """

    format: str
    marker: str


DATA = Kind("rerule/data", "manifest.json")
"""The folders that data_prep writes."""


def stamp(kind: Kind, files: Collection[str]) -> dict[str, Any]:
    """The keys by which a marker says that its folder is ours and holds `files`, the marker included."""
    contents = sorted({*files, kind.marker})
    return {"format": kind.format, "format_version": FORMAT_VERSION, "contents": contents}


def stamp_folder(kind: Kind, folder: Path) -> dict[str, Any]:
    """`stamp` of what is in a folder."""
    return stamp(kind, list(paths_in(folder)))


def check_owned(folder: Path, kind: Kind) -> list[str]:
    """The relative paths of all files of a folder, every one of which its marker names.

    Raises:
        OwnershipError: the folder has no marker of this kind, or holds something its marker does not name.
    """
    found = list(paths_in(folder))
    if found and kind.marker not in found:
        raise OwnershipError(f"{folder} has no {kind.marker}, so it is not replaced: give another folder")
    named = _named(folder, kind) if found else set()
    for path in found:
        if path not in named:
            raise OwnershipError(
                f"{folder / path} is not named in {kind.marker}, so {folder} is not replaced: move that file "
                "away, or give another folder"
            )
    return found


def remove_owned(folder: Path, paths: Collection[str]) -> None:
    """Remove these files of a folder, and every folder that is empty then.

    Raises:
        OwnershipError: something else is in the folder, which stays.
    """
    for path in paths:
        if not path.endswith("/"):
            (folder / path).unlink(missing_ok=True)
    for parent, _, _ in os.walk(folder, topdown=False):
        if not os.listdir(parent):
            os.rmdir(parent)
    if folder.exists():
        raise OwnershipError(f"{folder} holds files that appeared while it was replaced; they are kept there")


def paths_in(folder: Path) -> Iterator[str]:
    """Relative paths of all that is in a folder: files, links (which are not followed) and empty folders.

    An empty folder's path ends in "/".
    """
    for parent, folders, files in os.walk(folder, onerror=_raise):
        place = Path(parent).relative_to(folder)
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        yield from sorted((place / name).as_posix() for name in [*files, *links])
        if not folders and not files and place != Path():
            yield f"{place.as_posix()}/"


def read_record(file: Path) -> dict[str, Any]:
    """The JSON object in a file; {} where it is a link, no JSON or no object."""
    try:
        record = {} if file.is_symlink() else json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _named(folder: Path, kind: Kind) -> set[str]:
    """The paths that the marker names. Raises OwnershipError where it is not one of this kind and format."""
    record = read_record(folder / kind.marker)
    found, version, contents = (record.get(key) for key in ("format", "format_version", "contents"))
    if found is not None and found != kind.format:
        raise OwnershipError(
            f"{folder} is of format {str(found)[:40]!r} by its {kind.marker}, and this command replaces only "
            f"{kind.format}: give another folder"
        )
    if not found or version != FORMAT_VERSION or not isinstance(contents, list):
        raise OwnershipError(
            f"{folder / kind.marker} was not written by this command, so {folder} is not replaced: give "
            "another folder"
        )
    return {kind.marker, *(path for path in contents if isinstance(path, str))}


def _raise(error: OSError) -> None:
    raise error
