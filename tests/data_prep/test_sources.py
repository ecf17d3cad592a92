"""Raw files are read, or refused in one line that names the file and the line; tests/refused tries more."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from data_prep.sources import (
    FolderSource,
    HubSource,
    SourceError,
    Table,
    open_source,
    read_records,
    read_texts,
)

# ---- files ----

Rows = list[dict[str, Any]]


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


TWO = [{"a": "x", "b": 1}, {"a": "y"}]
JSON: list[tuple[str, str, list[int]]] = [
    ("rows.json", '[\n  {\n    "a": "x",\n    "b": 1\n  },\n\n  {"a": "y"}\n]\n', [2, 7]),
    ("rows.json", '{"a": "x", "b": 1}\n\n   \n{"a": "y"}\n', [1, 4]),
    ("rows.jsonl", '\n{\n"a": "x", "b": 1}\n{\n"a":\n"y"\n}', [2, 4]),
    ("rows", '\ufeff[\r\n{"a": "x", "b": 1},\r\n{"a": "y"}\r\n]', [2, 3]),
]


CSV = '\ufeffa, b,c\n\nx,"1\n, 2",\n\n"she said ""no""",é,  '
CSV_ROWS = [{"a": "x", "b": "1\n, 2"}, {"a": 'she said "no"', "b": "é"}]


@pytest.mark.parametrize(
    ("name", "text", "wanted", "lines"),
    [
        *((name, text, TWO, lines) for name, text, lines in JSON),
        ("ROWS.CSV", CSV, CSV_ROWS, [3, 6]),
        ("ROWS.CSV", CSV.replace("\n", "\r\n"), CSV_ROWS, [3, 6]),
        ("r.csv", "a;b\n1,5;2\n", [{"a": "1,5", "b": "2"}], [2]),
        ("r.csv", "a\tb,c\td\n1\t2\t3\n", [{"a": "1", "b,c": "2", "d": "3"}], [2]),
        ("r.tsv", "a,b,c\td\n1,2\t3\n", [{"a,b,c": "1,2", "d": "3"}], [2]),
    ],
)
def test_rows_are_named_by_the_line_they_begin_on(
    tmp_path: Path, name: str, text: str, wanted: Rows, lines: list[int]
) -> None:
    """The delimiter of CSV is the one that is most often in the header."""
    path = put(tmp_path, name, text)
    found = read_records(path)
    assert [dict(record.fields) for record in found] == wanted
    origins = [f"{path}:{line} (row {row})" for row, line in enumerate(lines, start=1)]
    assert [record.origin for record in found] == origins
    assert read_records(path, "here/it")[0].origin == f"here/it:{lines[0]} (row 1)"


def test_texts(tmp_path: Path) -> None:
    assert read_texts(put(tmp_path, "t.txt", "\ufeff one\r\n\n  two \n")) == ["one", "two"]
    assert read_texts(put(tmp_path, "t.jsonl", "I don't know.\n[1]\n")) == ["I don't know.", "[1]"]
    assert read_texts(put(tmp_path, "t.json", '[" one ", "", "two\\nlines"]')) == ["one", "two\nlines"]
    assert read_texts(put(tmp_path, "t.txt", "one\u2028and more\r\ntwo\x0c3\n")) == [
        "one\u2028and more",
        "two\x0c3",
    ]
    for name, text in (("t.jsonl", '{"text": "one"}\n'), ("t.txt", '"one"\n'), ("t.csv", "text\none\n")):
        with pytest.raises(SourceError, match="give a JSON array of texts"):
            read_texts(put(tmp_path, name, text))


def test_a_cell_may_hold_a_whole_text(tmp_path: Path) -> None:
    path = put(tmp_path, "long.csv", f"text,n\n{'a' * 200_000},1\n")
    assert len(read_records(path)[0].text("text")) == 200_000


# ---- tables of folders, and of data sets: one that lies in a folder owner/name is found by that name ----

QA = Table("sub/qa", "qa", "train")
TABLE_ROWS = [{"question": "Who?", "answer": "é"}, {"question": "Where?", "answer": None}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in TABLE_ROWS)


def test_what_a_source_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder goes before a name on the Hub; what was not read has no hash."""
    path = put(tmp_path, "owner/name/sub/qa.jsonl", LINES)
    put(tmp_path, "owner/name/other.csv", "question,answer\nWho?,é\n")
    monkeypatch.chdir(tmp_path)
    source = open_source("owner/name")
    assert isinstance(source, FolderSource)
    assert source.name == "name"
    assert [source.has(Table(name)) for name in ("sub/qa", "other", "none")] == [True, True, False]
    found = source.read(QA)
    assert [dict(record.fields) for record in found] == TABLE_ROWS
    assert [one.origin for one in found] == [f"name/sub/qa.jsonl:{n} (row {n})" for n in (1, 2)]
    assert source.hashes == {"sub/qa.jsonl": hashlib.sha256(path.read_bytes()).hexdigest()}
    with pytest.raises(SourceError, match=r"none of none.json, none.jsonl, none.csv, none.parquet is there"):
        source.read(Table("none"))
    assert isinstance(open_source("owner/other"), HubSource)
    for name in ("nothing", "./a", "/a/b", "~/a", "a/b/c", ""):
        with pytest.raises(SourceError, match="no such folder, and not the name of a Hugging Face data set"):
            open_source(name)


def test_control_characters_are_taken_out(tmp_path: Path, capsys: Any) -> None:
    rows = [{"question": "Who?"}, {"question": "Beyonc\x00?", "answers": ["a\tb", "c\x1b"], "n": 1}]
    put(tmp_path, "raw/sub/qa.json", json.dumps(rows))
    records = FolderSource(tmp_path / "raw").read(QA)
    assert [dict(record.fields) for record in records] == [
        {"question": "Who?"},
        {"question": "Beyonc?", "answers": ["a\tb", "c"], "n": 1},
    ]
    warning = "warning: raw/sub/qa.json:1 (row 2): control characters taken out of 1 row\n"
    assert capsys.readouterr().err == warning


def test_a_data_set_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    card = "---\nconfigs: [{config_name: qa, data_files: qa.json}]\n---\n"
    put(tmp_path, "owner/name/README.md", card)
    put(tmp_path, "owner/name/qa.json", LINES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    hub = HubSource("owner/name")
    assert hub.has(QA)
    assert not hub.has(Table("sub/qa", "other", "train"))
    found = hub.read(QA)
    assert [dict(record.fields) for record in found] == TABLE_ROWS
    assert [record.origin for record in found] == [f"owner/name (qa, train) row {n}" for n in (1, 2)]
    lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in TABLE_ROWS)
    assert hub.hashes == {"qa/train": hashlib.sha256(lines.encode()).hexdigest()}
    with pytest.raises(SourceError, match=r'owner/name \(qa, test\): .*Unknown split "test"'):
        hub.read(Table("", "qa", "test"))
