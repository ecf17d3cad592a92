"""RWKU's targets: one folder of files each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data_prep.sources import FolderSource, SourceError

PROBE_FILE = "forget_level1.json"
HUB_FILES = "Target/*/*level*.json", "Target/*/reject.json"


def target_folders(source: str) -> list[FolderSource]:
    """The folder of each target, in RWKU's order (1_Stephen_King, 2_Confucius ...).

    `source` is such a folder, holds them (also under Target/ or targets/), or is a data set on the Hub.

    Raises SourceError when there are none.
    """
    root = Path(source) if Path(source).is_dir() else _downloaded(source)
    for parent in (root, root / "targets", root / "Target"):
        folders = [path.parent for path in parent.glob(f"*/{PROBE_FILE}")]
        if folders:
            return [FolderSource(folder) for folder in sorted(folders, key=_order)]
    if (root / PROBE_FILE).is_file():
        return [FolderSource(root)]
    raise SourceError(f"{source}: holds no target folder, which is one with {PROBE_FILE}")


def choose(folders: Sequence[FolderSource], names: Sequence[str]) -> list[FolderSource]:
    """Those of the given names, "Stephen King" or "1_Stephen_King"; all where no name is given.

    Raises SourceError naming what is not there.
    """
    by_name = {form: folder for folder in folders for form in (folder.name, target_name(folder))}
    for name in names:
        if name not in by_name:
            known = ", ".join(target_name(folder) for folder in folders)
            raise SourceError(f"there is no target {name!r}; choose from {known}")
    chosen = {by_name[name].folder: by_name[name] for name in names}
    return list(chosen.values()) or list(folders)


def target_name(folder: FolderSource) -> str:
    """The target's name as its folder has it: "Stephen King" of 1_Stephen_King."""
    number, _, name = folder.name.partition("_")
    return (name if number.isdigit() else folder.name).replace("_", " ")


def _order(folder: Path) -> tuple[int, str]:
    number = folder.name.partition("_")[0]
    return (int(number) if number.isdigit() else 0, folder.name)


def _downloaded(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=list(HUB_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SourceError(f"{name}: no such folder, and nothing to be had from the Hub: {reason}") from None
