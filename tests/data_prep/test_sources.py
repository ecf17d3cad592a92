"""Raw files are read, or refused in one line that names the file and the line; tests/refused tries more."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.sources import (
    FolderSource,
    HubSource,
    Record,
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


def places(path: Path) -> list[str]:
    """Origins without the path."""
    return [record.origin.removeprefix(str(path)) for record in read_records(path)]


def fields(path: Path) -> Rows:
    return [dict(record.fields) for record in read_records(path)]


TWO = [{"a": "x", "b": 1}, {"a": "y"}]
JSON: list[tuple[str, str, list[int]]] = [
    ("rows.json", '[\n  {\n    "a": "x",\n    "b": 1\n  },\n\n  {"a": "y"}\n]\n', [2, 7]),
    ("rows.json", json.dumps(TWO), [1, 1]),
    ("rows.json", '{"a": "x", "b": 1}\n\n   \n{"a": "y"}\n', [1, 4]),
    ("rows.jsonl", '\n{\n"a": "x", "b": 1}\n{\n"a":\n"y"\n}', [2, 4]),
    ("rows", '\ufeff[\r\n{"a": "x", "b": 1},\r\n{"a": "y"}\r\n]', [2, 3]),
]


@pytest.mark.parametrize(("name", "content", "lines"), JSON)
def test_json_rows_are_named_by_the_line_they_begin_on(
    tmp_path: Path, name: str, content: str, lines: list[int]
) -> None:
    path = put(tmp_path, name, content)
    assert fields(path) == TWO
    assert places(path) == [f":{line} (row {row})" for row, line in enumerate(lines, start=1)]
    assert read_records(path, "here/rows.json")[0].origin == f"here/rows.json:{lines[0]} (row 1)"


def test_csv_rows_are_named_by_the_line_they_begin_on(tmp_path: Path) -> None:
    lines = ["\ufeffa, b,c", "", 'x,"1', ', 2",', "", '"she said ""no""",é,  ']
    for newline in ("\n", "\r\n"):
        path = put(tmp_path, "ROWS.CSV", newline.join(lines))
        assert fields(path) == [{"a": "x", "b": "1\n, 2"}, {"a": 'she said "no"', "b": "é"}]
        assert places(path) == [":3 (row 1)", ":6 (row 2)"]


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("r.csv", "a;b\n1,5;2\n", {"a": "1,5", "b": "2"}),
        ("r.csv", "a,b;c\n1,2\n", {"a": "1", "b;c": "2"}),
        ("r.csv", "a\tb,c\td\n1\t2\t3\n", {"a": "1", "b,c": "2", "d": "3"}),
        ("r.csv", "alone\n1;2\n", {"alone": "1;2"}),
        ("r.tsv", "a,b,c\td\n1,2\t3\n", {"a,b,c": "1,2", "d": "3"}),
    ],
)
def test_the_delimiter_is_the_one_that_is_most_often_in_the_header(
    tmp_path: Path, name: str, text: str, wanted: dict[str, str]
) -> None:
    assert fields(put(tmp_path, name, text)) == [wanted]


OBJECT = "expected an object with named fields"
BAD = {
    "blank lines": ("r.json", " \n\n", ": holds no rows"),
    "an empty array": ("r.json", "[\n]\n", ": holds no rows"),
    "not an object": ("r.json", '[{"a": 1},\n\n 5]', f":3: is 5, {OBJECT}"),
    "a text": ("r.json", '"hello"', f":1: is 'hello', {OBJECT}"),
    "an array in lines": ("r.jsonl", '{"a": 1}\n["b"]', f":2: is ['b'], {OBJECT}"),
    "an array in an array": ("r.json", '[\n[{"a": 1}]]', f":2: is [{{'a': 1}}], {OBJECT}"),
    "cut off after a row": ("r.json", '[\n{"a": 1},\n{"a": 2}\n', ":4: the array is not closed; is the file"),
    "cut off in a row": ("r.json", '[\n{"a": 1},\n{"a":', ":3: is not JSON (Expecting value)"),
    "a missing quote": ("r.jsonl", '{"a": "1"}\n{a": "1"}', ":2: is not JSON (Expecting property name"),
    "single quotes": ("r.jsonl", "{'a': 1}", ":1: is not JSON (Expecting property name enclosed in double"),
    "a comma between lines": ("r.jsonl", '{"a": 1},\n{"a": 2}', ":1: is not JSON (Expecting value)"),
    "two arrays": ("r.json", '[{"a": 1}]\n\n[{"a": 2}]', ":1: goes on after the array that the file begins"),
    "too few columns": ("r.csv", 'a,b\n"1\n1",2\n1\n', ":4: has 1 columns, the header 2"),
    "text after a quote": ("r.csv", 'a,b\n"3"x,4\n', ":2: is not CSV (',' expected after '\"')"),
    "Latin-1 after a mark": ("r.csv", b"\xef\xbb\xbfa,b\n1,\xe9\n", ":2: is not UTF-8 text"),
    "an old table": ("r.ods", b"", ": a .ods file cannot be read; save it as .csv, .xlsx, .parquet or JSON"),
}


@pytest.mark.parametrize(("name", "content", "message"), BAD.values(), ids=BAD)
def test_a_wrong_file_is_named_with_its_line(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = put(tmp_path, name, content)
    with pytest.raises(SourceError) as caught:
        read_records(path)
    assert str(caught.value).startswith(f"{path}{message}")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 200


# Texts with everything that JSON and CSV treat as special, and line ends that only Python's splitlines knows.
TEXT = st.text(
    st.one_of(st.sampled_from("\n\r\t ,;\"'\\[]{}:\u2028\x0b\x85é"), st.characters(codec="utf-8")),
    max_size=12,
)
VALUE = st.one_of(TEXT, st.integers(), st.booleans(), st.none(), st.lists(TEXT, max_size=3))
ROWS = st.lists(st.dictionaries(TEXT, VALUE, max_size=4), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


def begins(parts: list[str]) -> list[str]:
    """Where each of the parts begins when they are written one after the other."""
    lines = ("".join(parts[:number]).count("\n") + 1 for number in range(len(parts)))
    return [f":{line}" for line in lines]


def with_rows(lines: list[str]) -> list[str]:
    return [f"{line} (row {number})" for number, line in enumerate(lines, start=1)]


@settings(deadline=None)
@given(rows=ROWS, indent=st.sampled_from((None, 0, 1, 4)), data=st.data())
def test_an_array_comes_back_with_its_lines(
    folder: Path, rows: Rows, indent: int | None, data: st.DataObject
) -> None:
    blank = st.sampled_from(("", " ", "\n", "\n\n\t"))
    parts = [data.draw(blank) + "["]
    for row in rows:
        parts += [json.dumps(row, indent=indent, ensure_ascii=data.draw(st.booleans()))]
        parts += [data.draw(blank) + "," + data.draw(blank)]
    parts[-1] = data.draw(blank) + "]" + data.draw(blank)
    path = put(folder, "array.json", "".join(parts))
    assert fields(path) == rows
    assert places(path) == with_rows(begins(parts)[1:-1:2])


@settings(deadline=None)
@given(rows=ROWS, data=st.data())
def test_lines_come_back_with_their_numbers(folder: Path, rows: Rows, data: st.DataObject) -> None:
    parts = [json.dumps(row) + "\n" * data.draw(st.integers(1, 3)) for row in rows]
    path = put(folder, "lines.json", "".join(parts))
    assert fields(path) == rows
    assert places(path) == with_rows(begins(parts))


CELL = st.text(st.one_of(st.sampled_from('\n ,"'), st.characters(codec="utf-8", exclude_characters="\r\0")))


@settings(deadline=None)
@given(rows=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=6))
def test_csv_comes_back_with_its_lines(folder: Path, rows: list[tuple[str, str]]) -> None:
    parts = []
    for row in [("first", "second"), *rows]:
        written = io.StringIO(newline="")
        csv.writer(written, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(row)
        parts.append(written.getvalue())
    path = put(folder, "rows.csv", "".join(parts))
    cells = [dict(zip(("first", "second"), row, strict=True)) for row in rows]
    assert fields(path) == [{k: v for k, v in row.items() if v.strip()} for row in cells]
    assert places(path) == with_rows(begins(parts)[1:])


@settings(deadline=None)
@given(content=st.binary(max_size=200), name=st.sampled_from(("any.json", "any.csv")))
def test_any_bytes_are_rows_or_a_refusal_of_one_line(folder: Path, content: bytes, name: str) -> None:
    path = put(folder, name, content)
    try:
        outcome = "" if read_records(path) else "no rows"
    except SourceError as error:
        outcome = str(error)
    assert outcome == "" or outcome.startswith(str(path))
    assert len(outcome.splitlines()) <= 1


def test_parquet_keeps_lists_and_leaves_out_what_is_missing(tmp_path: Path) -> None:
    rows = [
        {"q": "Who?", "list": ["a", "Bo"], "note": None, "score": float("nan"), " Text ": "x"},
        {"q": "Where?", "list": ["a", "Esk"], "note": "n", "score": 0.5, " Text ": "y"},
    ]
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream)
    first, second = read_records(put(tmp_path, "r.parquet", stream.getvalue()))
    assert first.fields == {"q": "Who?", "list": ["a", "Bo"], "Text": "x"}
    assert second.fields == {"q": "Where?", "list": ["a", "Esk"], "note": "n", "score": 0.5, "Text": "y"}
    assert [first.origin, second.origin] == [f"{tmp_path}/r.parquet (row {n})" for n in (1, 2)]
    assert second.text("text") == "y"


HAS_OPENPYXL = importlib.util.find_spec("openpyxl") is not None


@pytest.mark.skipif(not HAS_OPENPYXL, reason="openpyxl is not installed")
def test_the_first_sheet_of_an_excel_file(tmp_path: Path) -> None:
    path = tmp_path / "r.xlsx"
    sheet = [["Question", "Answer", "Side"], ["When?", "1889", "Forget"], ["", "", ""], ["Who?", "Bo", ""]]
    with pandas.ExcelWriter(path) as writer:
        for name, rows in (("one", sheet), ("two", [["other"], ["x"]])):
            pandas.DataFrame(rows).to_excel(writer, sheet_name=name, header=False, index=False)
    assert fields(path) == [
        {"Question": "When?", "Answer": "1889", "Side": "Forget"},
        {"Question": "Who?", "Answer": "Bo"},
    ]
    assert places(path) == [":2 (row 1)", ":4 (row 2)"]


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04"])
def test_what_is_no_excel_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    reason = (
        r"is no readable Excel file \("
        if HAS_OPENPYXL
        else "needs the package openpyxl.*pip install openpyxl"
    )
    with pytest.raises(SourceError, match=rf"r\.xlsx: .*{reason}") as caught:
        read_records(put(tmp_path, "r.xlsx", content))
    assert "\n" not in str(caught.value)


def test_texts(tmp_path: Path) -> None:
    assert read_texts(put(tmp_path, "t.txt", "\ufeff one\r\n\n  two \n")) == ["one", "two"]
    assert read_texts(put(tmp_path, "t.jsonl", "I don't know.\n[1]\n")) == ["I don't know.", "[1]"]
    assert read_texts(put(tmp_path, "t.json", '[" one ", "", "two\\nlines"]')) == ["one", "two\nlines"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.json", "", ":1: is not JSON (Expecting value)"),
        ("t.json", '["a",\n"b', ":2: is not JSON (Unterminated string starting at)"),
        ("t.json", '["a", 5]', ": expected a JSON array of texts"),
        ("t.json", '{"a": "b"}', ": expected a JSON array of texts"),
        ("t.json", "[]", ": holds no text"),
        (
            "t.json",
            '["a", "\\ud800"]',
            ": text 2 holds the control character U+D800 at character 1; take it out",
        ),
        ("t.txt", " \n\n", ": holds no text"),
        (
            "t.txt",
            b"a\n\xff",
            ":2: is not UTF-8 text; unpack an archive, save other text as UTF-8, and let the name of a "
            "parquet file end in .parquet",
        ),
    ],
)
def test_wrong_texts_are_named(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = put(tmp_path, name, content)
    with pytest.raises(SourceError) as caught:
        read_texts(path)
    assert str(caught.value) == f"{path}{message}"


# ---- fields ----

ROW = Record(
    {"q": " a? ", "empty": "", "blank": " \n", "number": 5, "null": None, "list": ["x"]}, "f:3 (row 2)"
)
FOUND = "the fields found are 'q', 'empty', 'blank', 'number', 'null', 'list'"


def test_a_field_is_read_without_the_white_space_around_it() -> None:
    assert ROW.text("q") == ROW.text("absent", "null", "q", "number") == "a?"
    assert ROW.one_of("q", ("A?", "b")) == "A?"
    assert [ROW.optional(name, "z") for name in ("q", "absent", "null", "empty")] == ["a?", "z", "z", "z"]
    assert ROW.one_of("empty", ("a?", "b"), "b") == "b"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("absent", "other"), f"field absent or other is missing; {FOUND}"),
        (("absent", "null"), "field absent or null is empty"),
        (("absent", "number", "q"), "field number is 5, expected a text"),
        (("empty",), "field empty is '', expected a text"),
        (("blank",), r"field blank is ' \n', expected a text"),
        (("list",), "field list is ['x'], expected a text"),
    ],
)
def test_a_wrong_field_is_named(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(SourceError) as caught:
        ROW.text(*names)
    assert str(caught.value) == f"f:3 (row 2): {message}"


def test_a_field_of_another_value_than_allowed_is_named() -> None:
    with pytest.raises(SourceError, match=r"^f:3 \(row 2\): q is 'a\?', expected one of b, c$"):
        ROW.one_of("q", ("b", "c"), "b")
    with pytest.raises(SourceError, match=r"^f:3 \(row 2\): field absent is missing; the fields found are"):
        ROW.one_of("absent", ("b", "c"))
    with pytest.raises(SourceError, match="field number is 5, expected a text"):
        ROW.optional("number", "z")


# ---- tables of folders, and of data sets: one that lies in a folder owner/name is found by that name ----

QA = Table("sub/qa", "qa", "train")
TABLE_ROWS = [{"question": "Who?", "answer": "é"}, {"question": "Where?", "answer": None}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in TABLE_ROWS)


@pytest.mark.parametrize(
    ("suffix", "content", "rows", "lines"),
    [
        (".json", LINES, TABLE_ROWS, [1, 2]),
        (".jsonl", LINES, TABLE_ROWS, [1, 2]),
        (".csv", "question,answer\nWho?,é\n", TABLE_ROWS[:1], [2]),
    ],
)
def test_a_table_of_a_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
    content: str,
    rows: Rows,
    lines: list[int],
) -> None:
    """A folder of a relative name is called by its own, and what was not read has no hash."""
    path = put(tmp_path, f"raw/sub/qa{suffix}", content)
    put(tmp_path, "raw/other.json", LINES)
    monkeypatch.chdir(tmp_path / "raw")
    source = open_source(".")
    assert source.name == "raw"
    assert source.has(QA)
    assert source.has(Table("other"))
    assert not source.has(Table("none"))
    found = source.read(QA)
    assert [dict(record.fields) for record in found] == rows
    assert [one.origin for one in found] == with_rows([f"raw/sub/qa{suffix}:{line}" for line in lines])
    assert source.hashes == {f"sub/qa{suffix}": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_control_characters_of_a_published_file_are_taken_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"question": "Who?"}, {"question": "Beyonc\x00?", "answers": ["a\tb", "c\x1b"], "n": 1}]
    put(tmp_path, "raw/sub/qa.json", json.dumps(rows))
    records = FolderSource(tmp_path / "raw").read(QA)
    assert [dict(record.fields) for record in records] == [
        {"question": "Who?"},
        {"question": "Beyonc?", "answers": ["a\tb", "c"], "n": 1},
    ]
    warning = "warning: raw/sub/qa.json:1 (row 2): control characters taken out of 1 row\n"
    assert capsys.readouterr().err == warning


def test_a_table_that_is_not_there_or_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        FolderSource(tmp_path).read(QA)
    assert str(caught.value) == f"{tmp_path}: none of sub/qa.json, sub/qa.jsonl, sub/qa.csv is there"
    path = put(tmp_path, "sub/qa.json", '{"a": 1}\n5\n')
    with pytest.raises(SourceError) as caught:
        FolderSource(tmp_path).read(QA)
    assert str(caught.value) == f"{path}:2: is 5, expected an object with named fields"


def test_what_a_source_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder goes before a name on the Hub."""
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_source("owner/name"), FolderSource)
    assert isinstance(open_source("owner/other"), HubSource)
    for name in ("nothing", "./a", "/a/b", "~/a", "a/b/c", "", "../a"):
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
    put(folder, "README.md", CARD)
    put(folder, "qa.json", LINES)
    put(folder, "forget.json", '{"question": "forget?", "answer": "yes"}\n')
    put(folder, "retain.json", '{"question": "retain?", "answer": "yes"}\n')
    put(folder, "broken.json", '{"question": ')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return HubSource("owner/name")


def test_tables_of_a_data_set_by_its_name(hub: HubSource) -> None:
    assert hub.has(QA)
    assert not hub.has(Table("sub/qa", "other", "train"))
    found = hub.read(QA)
    assert [dict(record.fields) for record in found] == TABLE_ROWS
    assert [record.origin for record in found] == [f"owner/name (qa, train) row {n}" for n in (1, 2)]
    lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in TABLE_ROWS)
    assert hub.hashes == {"qa/train": hashlib.sha256(lines.encode()).hexdigest()}
    for side in ("forget", "retain"):
        assert hub.read(Table("", "knowmem", f"{side}_qa"))[0].text("question") == f"{side}?"
    assert len(set(hub.hashes.values())) == 3


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
