"""Tables of folders, and of data sets through the real library: one that lies in a folder owner/name is found
by that name, without a network."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from data_prep.sources import FolderSource, HubSource, SourceError, Table, open_source

QA = Table("sub/qa", "qa", "train")
ROWS = [{"question": "Who?", "answer": "é"}, {"question": "Where?", "answer": None}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_a_table_of_a_folder(tmp_path: Path, suffix: str) -> None:
    path = put(tmp_path / "raw" / f"sub/qa{suffix}", LINES)
    source = FolderSource(tmp_path / "raw")
    assert source.name == "raw"
    assert source.has(QA)
    assert [dict(record.fields) for record in source.read(QA)] == ROWS
    assert [record.origin for record in source.read(QA)] == [
        f"raw/sub/qa{suffix}:1 (row 1)",
        f"raw/sub/qa{suffix}:2 (row 2)",
    ]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert source.hashes == {f"sub/qa{suffix}": digest}


def test_control_characters_of_a_published_file_are_taken_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"question": "Who?"}, {"question": "Beyonc\x00?", "answers": ["a\tb", "c\x1b"], "n": 1}]
    put(tmp_path / "raw/sub/qa.json", json.dumps(rows))
    records = FolderSource(tmp_path / "raw").read(QA)
    assert [dict(record.fields) for record in records] == [
        {"question": "Who?"},
        {"question": "Beyonc?", "answers": ["a\tb", "c"], "n": 1},
    ]
    warning = "warning: raw/sub/qa.json:1 (row 2): control characters taken out of 1 row\n"
    assert capsys.readouterr().err == warning


def test_a_csv_table(tmp_path: Path) -> None:
    put(tmp_path / "sub/qa.csv", "question,answer\nWho?,é\n")
    (record,) = FolderSource(tmp_path).read(QA)
    assert record.fields == ROWS[0]
    assert record.origin == f"{tmp_path.name}/sub/qa.csv:2 (row 1)"


def test_what_was_not_read_has_no_hash(tmp_path: Path) -> None:
    put(tmp_path / "sub/qa.json", LINES)
    put(tmp_path / "other.json", LINES)
    source = FolderSource(tmp_path)
    assert source.has(Table("other", "", ""))
    assert source.hashes == {}
    source.read(QA)
    assert list(source.hashes) == ["sub/qa.json"]


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    source = FolderSource(tmp_path)
    assert not source.has(QA)
    with pytest.raises(SourceError) as caught:
        source.read(QA)
    assert str(caught.value) == f"{tmp_path}: none of sub/qa.json, sub/qa.jsonl, sub/qa.csv is there"


def test_a_wrong_row_names_the_whole_path(tmp_path: Path) -> None:
    path = put(tmp_path / "sub/qa.json", '{"a": 1}\n5\n')
    with pytest.raises(SourceError) as caught:
        FolderSource(tmp_path).read(QA)
    assert str(caught.value) == f"{path}:2: is 5, expected an object with named fields"


def test_a_folder_of_a_relative_name_is_called_by_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "raw" / "sub/qa.json", LINES)
    monkeypatch.chdir(tmp_path / "raw")
    source = open_source(".")
    assert source.name == "raw"
    assert source.read(QA)[0].origin == "raw/sub/qa.json:1 (row 1)"


def test_a_folder_goes_before_a_name_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_source("owner/name"), FolderSource)
    assert isinstance(open_source("owner/other"), HubSource)


@pytest.mark.parametrize("name", ["nothing", "./a", "/a/b", "~/a", "a/b/c", "", "../a"])
def test_what_can_be_neither_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError) as caught:
        open_source(name)
    message = "no such folder, and not the name of a Hugging Face data set (owner/name)"
    assert str(caught.value) == f"{name}: {message}"


CARD = """\
---
configs:
- config_name: qa
  data_files: qa.json
- config_name: knowmem
  data_files:
  - split: forget_qa
    path: forget.json
  - split: retain_qa
    path: retain.json
- config_name: broken
  data_files: broken.json
---
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubSource:
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "owner" / "name"
    put(folder / "README.md", CARD)
    put(folder / "qa.json", LINES)
    put(folder / "forget.json", '{"question": "forget?", "answer": "yes"}\n')
    put(folder / "retain.json", '{"question": "retain?", "answer": "yes"}\n')
    put(folder / "broken.json", '{"question": ')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return HubSource("owner/name")


def test_a_data_set_by_its_name(hub: HubSource) -> None:
    assert [dict(record.fields) for record in hub.read(QA)] == ROWS
    assert [record.origin for record in hub.read(QA)] == [
        "owner/name (qa, train) row 1",
        "owner/name (qa, train) row 2",
    ]
    assert hub.read(QA)[0].text("answer") == "é"


def test_splits_of_a_data_set(hub: HubSource) -> None:
    asked = [
        hub.read(Table("", "knowmem", split))[0].text("question") for split in ("forget_qa", "retain_qa")
    ]
    assert asked == ["forget?", "retain?"]
    assert len(set(hub.hashes.values())) == 2
    assert list(hub.hashes) == ["knowmem/forget_qa", "knowmem/retain_qa"]


def test_the_hash_of_a_data_set_is_of_its_rows(hub: HubSource, tmp_path: Path) -> None:
    lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in ROWS)
    hub.read(QA)
    assert hub.hashes["qa/train"] == hashlib.sha256(lines.encode()).hexdigest()


def test_which_tables_a_data_set_has(hub: HubSource) -> None:
    assert hub.has(QA)
    assert not hub.has(Table("sub/qa", "other", "train"))


@pytest.mark.parametrize(
    ("name", "table", "reason"),
    [
        ("owner/name", Table("", "qa", "test"), r'\(qa, test\): .*Unknown split "test"'),
        ("owner/name", Table("", "none", "train"), r"\(none, train\): .*'none' not found"),
        ("owner/name", Table("", "broken", "train"), r"\(broken, train\): .*error occurred while generating"),
        ("owner/none", QA, r"\(qa, train\): is no folder, and cannot be loaded from the Hub: .*owner/none"),
    ],
)
def test_a_data_set_that_cannot_be_read_is_one_line(
    hub: HubSource, name: str, table: Table, reason: str
) -> None:
    with pytest.raises(SourceError, match=f"^{name} {reason}") as caught:
        HubSource(name).read(table)
    assert "\n" not in str(caught.value)


def test_a_data_set_that_is_not_there_has_no_tables(hub: HubSource) -> None:
    with pytest.raises(SourceError, match=r"^owner/none: is no folder, and cannot be loaded from the Hub: "):
        HubSource("owner/none").has(QA)
