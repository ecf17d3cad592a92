from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.rwku.targets import choose, target_folders, target_name
from data_prep.sources import FolderSource, SourceError
from tests.data_prep.raw_files import RWKU_TARGETS, error_of, prep, put_rwku, put_rwku_target
from tests.data_prep.real_data import DATA, needs_data


def names(folders: list[FolderSource]) -> list[str]:
    return [folder.name for folder in folders]


@pytest.mark.parametrize("inside", [".", "targets", "Target"])
def test_targets_are_found_and_numbered_in_order(tmp_path: Path, inside: str) -> None:
    put_rwku(tmp_path / inside)
    (tmp_path / "notes").mkdir()
    assert names(target_folders(str(tmp_path))) == list(RWKU_TARGETS)


def test_folders_without_a_number_come_first_by_name(tmp_path: Path) -> None:
    for name in ("2_Bo", "Zoe", "Amy", "10_Cy", "1_Ada"):
        put_rwku_target(tmp_path / name)
    assert names(target_folders(str(tmp_path))) == ["Amy", "Zoe", "1_Ada", "2_Bo", "10_Cy"]


def test_a_target_folder_itself_is_taken(tmp_path: Path) -> None:
    put_rwku_target(tmp_path / "1_Ada_Thorn")
    assert names(target_folders(str(tmp_path / "1_Ada_Thorn"))) == ["1_Ada_Thorn"]


def test_a_folder_without_targets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1_Ada_Thorn").mkdir()
    with pytest.raises(SourceError) as caught:
        target_folders(str(tmp_path))
    message = "holds no target folder, which is one with forget_level1.json"
    assert str(caught.value) == f"{tmp_path}: {message}"


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("1_Stephen_King", "Stephen King"),
        ("10_Prince_Harry,_Duke_of_Sussex", "Prince Harry, Duke of Sussex"),
        ("2_Confucius", "Confucius"),
        ("Stephen_King", "Stephen King"),
        ("Confucius", "Confucius"),
        ("3rd_Man", "3rd Man"),
    ],
)
def test_a_target_is_named_as_its_folder(folder: str, name: str) -> None:
    assert target_name(FolderSource(Path("anywhere", folder))) == name


@pytest.fixture
def folders(tmp_path: Path) -> list[FolderSource]:
    put_rwku(tmp_path)
    return target_folders(str(tmp_path))


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ([], list(RWKU_TARGETS)),
        (["Bo Fell"], ["2_Bo_Fell"]),
        (["2_Bo_Fell"], ["2_Bo_Fell"]),
        (["Cy, Duke of Esk", "Ada Thorn"], ["10_Cy,_Duke_of_Esk", "1_Ada_Thorn"]),
        (["Bo Fell", "2_Bo_Fell", "Bo Fell"], ["2_Bo_Fell"]),
    ],
)
def test_targets_by_name(folders: list[FolderSource], asked: list[str], chosen: list[str]) -> None:
    assert names(choose(folders, asked)) == chosen


@pytest.mark.parametrize("wrong", ["Bo", "bo fell", "3_Bo_Fell", "", "Duke of Esk"])
def test_an_unknown_target_is_told_with_those_there_are(folders: list[FolderSource], wrong: str) -> None:
    with pytest.raises(SourceError) as caught:
        choose(folders, ["Ada Thorn", wrong])
    known = "Ada Thorn, Bo Fell, Cy, Duke of Esk"
    assert str(caught.value) == f"there is no target {wrong!r}; choose from {known}"


COMMIT = "b8a03b3c" + "0" * 32


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set owner/rwku in a cache of the Hugging Face Hub, as a download would leave it."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "datasets--owner--rwku"
    put_rwku(folder / "snapshots" / COMMIT / "Target")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_data_set_of_the_hub_is_read_from_its_cache(cached: Path) -> None:
    assert names(target_folders("owner/rwku")) == list(RWKU_TARGETS)
    assert prep("rwku", "--source", "owner/rwku", "--target", "Bo Fell", "--out", cached / "out") == 0
    assert (cached / "out" / "2_Bo_Fell" / "train.parquet").is_file()


@pytest.mark.parametrize("name", ["owner/none", "no such/folder", "/nowhere/at/all"])
def test_what_is_neither_folder_nor_data_set_is_one_line(
    cached: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert prep("rwku", "--source", name, "--out", cached / "out") == 2
    assert error_of(capsys).startswith(f"error: {name}: no such folder, and nothing to be had from the Hub: ")
    assert not (cached / "out").exists()


@needs_data
def test_the_ten_targets_of_the_real_data() -> None:
    found = names(target_folders(str(DATA / "rwku")))
    assert [name.partition("_")[0] for name in found] == [str(number) for number in range(1, 11)]
    assert found[0] == "1_Stephen_King"
    assert found[9] == "10_Prince_Harry,_Duke_of_Sussex"
