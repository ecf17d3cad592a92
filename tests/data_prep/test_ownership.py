"""What makes a folder ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_prep.ownership import DATA, OwnershipError, check_owned, stamp


def put(folder: Path, marker: Any, *files: str) -> Path:
    """A folder with a manifest and files; a name that ends in "/" is an empty folder."""
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(marker if isinstance(marker, str) else json.dumps(marker))
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_text(name)
    return folder


OURS = stamp(DATA, ["train.parquet", "model/config.json", "a[1].txt"])


def test_a_folder_that_holds_what_is_named_is_ours(tmp_path: Path) -> None:
    folder = put(tmp_path / "out", OURS, "train.parquet", "model/config.json", "a[1].txt")
    assert sorted(check_owned(folder, DATA)) == [
        "a[1].txt", "manifest.json", "model/config.json", "train.parquet",
    ]  # fmt: skip
    (folder / "model" / "config.json").unlink()
    (folder / "model").rmdir()
    assert len(check_owned(folder, DATA)) == 3


def test_an_empty_folder_holds_nothing_of_anyones(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert check_owned(tmp_path / "out", DATA) == []


@pytest.mark.parametrize(
    "name", ["notes.txt", "model/notes.txt", ".hidden", "train.parquet.bak", "empty/", "a1.txt", "deep/er/x"]
)
def test_a_file_that_is_not_named_is_named_in_the_refusal(name: str, tmp_path: Path) -> None:
    folder = put(tmp_path / "out", OURS, "train.parquet", "model/config.json", name)
    with pytest.raises(OwnershipError) as caught:
        check_owned(folder, DATA)
    assert str(caught.value).startswith(f"{folder / name}")
    assert "\n" not in str(caught.value)


def test_a_link_is_not_what_we_wrote(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    folder = put(tmp_path / "out", stamp(DATA, ["linked/x", "there"]), "there")
    (folder / "linked").symlink_to(tmp_path / "mine")
    with pytest.raises(OwnershipError, match="linked is not named"):
        check_owned(folder, DATA)


@pytest.mark.parametrize(
    "marker",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        "\x00",
        {},
        {"name": "My web app", "icons": [], "start_url": "/"},
        {"format": "rerule/data"},
        {**OURS, "format_version": 3},
        {**OURS, "format_version": None},
        {**OURS, "contents": "train.parquet"},
        {**OURS, "contents": {"train.parquet": 3}},
        {**OURS, "contents": [1]},
        {**OURS, "contents": ["../other"]},
        {**OURS, "contents": ["/etc/passwd"]},
        {**OURS, "format": "rerule/evaluation"},
        {**OURS, "format": 7},
        {"benchmark": "rwku", "targets": "all"},
        {"benchmark": "tofu", "targets": []},
    ],
    ids=repr,
)
def test_other_manifests_are_not_ours(marker: Any, tmp_path: Path) -> None:
    folder = put(tmp_path / "out", marker, "train.parquet")
    with pytest.raises(OwnershipError) as caught:
        check_owned(folder, DATA)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
