"""Folders appear complete or not at all, and only one that is ours is replaced."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule import io
from recipe.rerule.io import (
    DATA,
    OwnershipError,
    check_apart,
    check_owned,
    existing,
    new_folder,
    stamp,
    stamp_folder,
)
from tests.checkpoint_faults import in_child


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fill(folder: Path, text: str) -> None:
    """A file and the marker that names it."""
    (folder / "rows.txt").write_text(text)
    (folder / "manifest.json").write_text(json.dumps(stamp_folder(DATA, folder)))


def make_world_folder(target: Path, text: str) -> None:
    target.mkdir()
    fill(target, text)


@pytest.fixture(params=["exchanged in one step", "moved away and put in place"])
def swapping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of replacing a folder; the second is that of file systems that know no exchange."""
    if request.param.startswith("moved"):
        monkeypatch.setattr(io, "exchange", lambda one, other: False)


def test_a_folder_appears_whole_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "world"
    with new_folder(target, overwrite=False) as draft:
        (draft / "a.txt").write_text("a")
        assert not target.exists()
        assert target.parent in draft.parents
    assert (target / "a.txt").read_text() == "a"
    assert names(target.parent) == ["world"]


def test_an_error_leaves_nothing_new_and_the_old_untouched(tmp_path: Path) -> None:
    target = tmp_path / "world"
    make_world_folder(target, "old")

    def fail() -> None:
        with new_folder(target, overwrite=True) as draft:
            fill(draft, "new")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert (target / "rows.txt").read_text() == "old"
    assert names(tmp_path) == ["world"]


@pytest.mark.usefixtures("swapping")
def test_overwrite_replaces_the_whole_folder(tmp_path: Path) -> None:
    target = tmp_path / "world"
    make_world_folder(target, "old")
    (target / "part").mkdir()
    (target / "part" / "more.txt").write_text("old")
    (target / "manifest.json").write_text(json.dumps(stamp_folder(DATA, target)))
    with new_folder(target, overwrite=True) as draft:
        fill(draft, "new")
    assert names(target) == ["manifest.json", "rows.txt"]
    assert (target / "rows.txt").read_text() == "new"
    assert names(tmp_path) == ["world"]


@pytest.mark.parametrize(("overwrite", "message"), [(False, "exists already"), (True, "no manifest.json")])
def test_foreign_folders_are_not_replaced(tmp_path: Path, overwrite: bool, message: str) -> None:
    target = tmp_path / "photos"
    target.mkdir()
    (target / "cat.png").write_text("cat")
    with pytest.raises(ValueError, match=message), new_folder(target, overwrite=overwrite):
        pass
    assert names(target) == ["cat.png"]
    assert names(tmp_path) == ["photos"]


def test_a_file_in_the_way_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "world"
    target.write_text("mine")
    with pytest.raises(ValueError, match=r"no manifest\.json"), new_folder(target, overwrite=True):
        pass
    assert target.read_text() == "mine"


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "world"

    def build_slowly() -> None:
        with new_folder(target, overwrite=False):
            make_world_folder(target, "other")

    with pytest.raises(ValueError, match="exists already"):
        build_slowly()
    assert (target / "rows.txt").read_text() == "other"


def test_a_file_that_appears_meanwhile_is_not_removed(tmp_path: Path) -> None:
    target = tmp_path / "world"
    make_world_folder(target, "old")

    def build_slowly() -> None:
        with new_folder(target, overwrite=True) as draft:
            fill(draft, "new")
            (target / "mine.txt").write_text("mine")

    with pytest.raises(ValueError, match=r"mine\.txt is not named"):
        build_slowly()
    assert names(target) == ["manifest.json", "mine.txt", "rows.txt"]
    assert names(tmp_path) == ["world"]


@pytest.mark.usefixtures("swapping")
def test_a_file_that_appears_at_the_last_moment_is_kept_and_its_place_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "world"
    make_world_folder(target, "old")
    remove = io.remove_owned

    def remove_late(folder: Path, paths: list[str]) -> None:
        (folder / "mine.txt").write_text("mine")
        remove(folder, paths)

    monkeypatch.setattr(io, "remove_owned", remove_late)

    def build() -> None:
        with new_folder(target, overwrite=True) as draft:
            fill(draft, "new")

    with pytest.raises(ValueError, match="files that appeared") as caught:
        build()
    kept = Path(str(caught.value).split(" holds ")[0])
    assert names(kept) == ["mine.txt"]
    assert (target / "rows.txt").read_text() == "new"
    monkeypatch.setattr(io, "remove_owned", remove)
    build()
    assert names(kept) == ["mine.txt"]


def test_a_link_stays_and_the_folder_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    make_world_folder(tmp_path / "disk" / "world", "old")
    (tmp_path / "world").symlink_to(tmp_path / "disk" / "world")
    with new_folder(tmp_path / "world", overwrite=True) as draft:
        assert tmp_path / "disk" in draft.parents
        fill(draft, "new")
    assert (tmp_path / "world").is_symlink()
    assert (tmp_path / "disk" / "world" / "rows.txt").read_text() == "new"
    assert names(tmp_path / "disk") == ["world"]


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "world").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match="leads nowhere"), new_folder(tmp_path / "world", overwrite=True):
        pass
    assert names(tmp_path) == ["world"]


@pytest.mark.parametrize("error", [OSError("disk"), KeyboardInterrupt()], ids=repr)
def test_an_error_between_two_moves_puts_the_old_folder_back(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "world"
    make_world_folder(target, "old")
    monkeypatch.setattr(io, "exchange", lambda one, other: False)
    rename = Path.rename

    def fail(self: Path, other: Path) -> Path:
        if self.name == "draft":
            raise error
        return rename(self, other)

    monkeypatch.setattr(Path, "rename", fail)

    def build() -> None:
        with new_folder(target, overwrite=True) as draft:
            fill(draft, "new")

    with pytest.raises(type(error)):
        build()
    assert (target / "rows.txt").read_text() == "old"
    assert names(tmp_path) == ["world"]
    assert "world is back" in capsys.readouterr().err


def kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def replace_and_die(target: Path, moment: str) -> None:
    """Replace a folder in a process that is killed at this moment."""
    if moment == "between two moves":
        io.exchange = lambda one, other: False
        rename = Path.rename
        Path.rename = lambda self, other: kill() if self.name == "draft" else rename(self, other)  # type: ignore
    if moment == "before the old one is removed":
        io.remove_owned = kill
    with new_folder(target, overwrite=True) as draft:
        fill(draft, "new")
        if moment == "while the draft is written":
            kill()


@pytest.mark.parametrize(
    ("moment", "left"),
    [
        ("while the draft is written", "old"),
        ("between two moves", None),
        ("before the old one is removed", "new"),
    ],
)
def test_a_kill_loses_nothing_and_the_next_command_leaves_no_draft(
    moment: str, left: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "world"
    make_world_folder(target, "old")
    (tmp_path / ".world.draft-mine").mkdir()
    (tmp_path / ".world.draft-mine" / "draft").write_text("mine")
    status = os.waitpid(in_child(lambda: replace_and_die(target, moment)), 0)[1]
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert ((target / "rows.txt").read_text() if target.exists() else None) == left
    assert len(names(tmp_path)) == (3 if left else 2)
    with pytest.raises(ValueError, match="exists already"), new_folder(target, overwrite=False):
        pass
    assert (target / "rows.txt").read_text() == (left or "old")
    assert ("world is back" in capsys.readouterr().err) == (left is None)
    assert names(tmp_path) == [".world.draft-mine", "world"]


def test_the_draft_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    with new_folder(tmp_path / "world", overwrite=False) as first:
        with new_folder(tmp_path / "world", overwrite=False) as second:
            (second / "a.txt").write_text("second")
        assert first.is_dir()
        (tmp_path / "world" / "a.txt").unlink()
        (tmp_path / "world").rmdir()
    assert names(tmp_path / "world") == []


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


def test_what_is_written_stands_apart_from_what_is_read(tmp_path: Path) -> None:
    inner = tmp_path / "out" / "rows.parquet"
    inner.parent.mkdir()
    inner.touch()
    assert existing(("--data", inner), ("--model", "org/name"), ("--raw", None)) == [("--data", inner)]
    check_apart(tmp_path / "new", ("--data", inner), runs=[("--run", tmp_path)])
    for out, reason in ((inner, "which --data reads"), (inner.parent, "in which --data .* lies")):
        with pytest.raises(ValueError, match=reason):
            check_apart(out, runs=[("--data", inner)])
    with pytest.raises(ValueError, match="which lies in what --data reads"):
        check_apart(inner, ("--data", tmp_path))
