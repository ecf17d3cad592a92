"""Raw files of every kind are read, or refused in one line that names the file and the line."""

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
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def places(path: Path) -> list[str]:
    """Origins without the path."""
    return [record.origin.removeprefix(str(path)) for record in read_records(path)]


def fields(path: Path) -> Rows:
    return [dict(record.fields) for record in read_records(path)]


TWO = [{"a": "x", "b": 1}, {"a": "y"}]


def test_a_pretty_array(tmp_path: Path) -> None:
    path = put(tmp_path, "rows.json", '[\n  {\n    "a": "x",\n    "b": 1\n  },\n\n  {"a": "y"}\n]\n')
    assert fields(path) == TWO
    assert places(path) == [":2 (row 1)", ":7 (row 2)"]


def test_an_array_on_one_line(tmp_path: Path) -> None:
    path = put(tmp_path, "rows.json", json.dumps(TWO))
    assert fields(path) == TWO
    assert places(path) == [":1 (row 1)", ":1 (row 2)"]


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows"])
def test_json_lines_whatever_the_name(tmp_path: Path, name: str) -> None:
    path = put(tmp_path, name, '{"a": "x", "b": 1}\n\n   \n{"a": "y"}\n')
    assert fields(path) == TWO
    assert places(path) == [":1 (row 1)", ":4 (row 2)"]


def test_one_object_over_many_lines(tmp_path: Path) -> None:
    path = put(tmp_path, "rows.json", '\n{\n"a": "x"}\n{\n"a":\n"y"\n}')
    assert fields(path) == [{"a": "x"}, {"a": "y"}]
    assert places(path) == [":2 (row 1)", ":4 (row 2)"]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_byte_order_mark_and_windows_line_ends(tmp_path: Path, newline: str) -> None:
    text = newline.join(("\ufeff[", '{"a": "x", "b": 1},', '{"a": "y"}', "]"))
    path = put(tmp_path, "rows.json", text)
    assert fields(path) == TWO
    assert places(path) == [":2 (row 1)", ":3 (row 2)"]


def test_origins_name_the_file_as_asked(tmp_path: Path) -> None:
    path = put(tmp_path, "rows.json", '\n{"a": 1}')
    assert [record.origin for record in read_records(path, "here/rows.json")] == ["here/rows.json:2 (row 1)"]


def test_a_csv_file(tmp_path: Path) -> None:
    path = put(tmp_path, "rows.csv", 'a, b,c\nx,"1, 2",\n"she said ""no""",é,  \n')
    assert fields(path) == [{"a": "x", "b": "1, 2"}, {"a": 'she said "no"', "b": "é"}]
    assert places(path) == [":2 (row 1)", ":3 (row 2)"]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_csv_row_is_named_by_the_line_it_begins_on(tmp_path: Path, newline: str) -> None:
    lines = ["\ufeffa,b", "", '"x', "y", '",1', "", "", "z,2"]
    path = put(tmp_path, "ROWS.CSV", newline.join(lines))
    assert fields(path) == [{"a": "x\ny\n", "b": "1"}, {"a": "z", "b": "2"}]
    assert places(path) == [":3 (row 1)", ":8 (row 2)"]


BAD = {
    "blank lines": ("r.json", " \n\n", ": holds no rows"),
    "an empty array": ("r.json", "[\n]\n", ": holds no rows"),
    "not an object": ("r.json", '[{"a": 1},\n\n 5]', ":3: is 5, expected an object with named fields"),
    "a text": ("r.json", '"hello"', ":1: is 'hello', expected an object with named fields"),
    "an array in lines": ("r.jsonl", '{"a": 1}\n["b"]', ":2: is ['b'], expected an object with named fields"),
    "an array in an array": ("r.json", '[\n[{"a": 1}]]', ":2: is [{'a': 1}], expected an object with"),
    "null": ("r.json", '[{"a": 1},\nnull]', ":2: is None, expected an object with named fields"),
    "cut off after a row": ("r.json", '[\n{"a": 1},\n{"a": 2}\n', ":4: the array is not closed; is the file"),
    "cut off after a comma": ("r.json", '[\n{"a": 1},', ":2: the array is not closed; is the file cut off?"),
    "cut off in a row": ("r.json", '[\n{"a": 1},\n{"a":', ":3: is not JSON (Expecting value)"),
    "cut off in a text": (
        "r.json",
        '[\n{"a": 1},\n{"a": "x',
        ":3: is not JSON (Unterminated string starting",
    ),
    "a missing quote": ("r.jsonl", '{"a": "1"}\n{a": "1"}', ":2: is not JSON (Expecting property name"),
    "single quotes": ("r.jsonl", "{'a': 1}", ":1: is not JSON (Expecting property name enclosed in double"),
    "a comma between lines": ("r.jsonl", '{"a": 1},\n{"a": 2}', ":1: is not JSON (Expecting value)"),
    "two arrays": ("r.json", '[{"a": 1}]\n\n[{"a": 2}]', ":3: goes on after the array that the file begins"),
    "text after the array": ("r.json", '[{"a": 1}] x', ":1: goes on after the array that the file begins"),
    "too few columns": ("r.csv", 'a,b\n"1\n1",2\n1\n', ":4: has 1 columns, the header 2"),
    "text after a quote": ("r.csv", 'a,b\n"3"x,4\n', ":2: is not CSV (',' expected after '\"')"),
    "Latin-1 after a mark": ("r.csv", b"\xef\xbb\xbfa,b\n1,\xe9\n", ":2: is not UTF-8 text"),
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


@pytest.mark.parametrize("read", [read_records, read_texts])
def test_a_file_that_cannot_be_opened(tmp_path: Path, read: Any) -> None:
    for path in (tmp_path / "none.json", tmp_path / "none.csv"):
        with pytest.raises(SourceError) as caught:
            read(path)
        assert str(caught.value) == f"{path}: cannot be read (No such file or directory)"
    with pytest.raises(SourceError, match=r"cannot be read \(Is a directory\)$"):
        read(tmp_path)


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


def begins(parts: list[str]) -> list[int]:
    """The line on which each of the parts begins when they are written one after the other."""
    return ["".join(parts[:number]).count("\n") + 1 for number in range(len(parts))]


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
    wanted = [f":{line} (row {number})" for number, line in enumerate(begins(parts)[1:-1:2], start=1)]
    assert places(path) == wanted


@settings(deadline=None)
@given(rows=ROWS, data=st.data())
def test_lines_come_back_with_their_numbers(folder: Path, rows: Rows, data: st.DataObject) -> None:
    parts = [json.dumps(row) + "\n" * data.draw(st.integers(1, 3)) for row in rows]
    path = put(folder, "lines.json", "".join(parts))
    assert fields(path) == rows
    wanted = [f":{line} (row {number})" for number, line in enumerate(begins(parts), start=1)]
    assert places(path) == wanted


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
    wanted = [f":{line} (row {number})" for number, line in enumerate(begins(parts)[1:], start=1)]
    assert places(path) == wanted


def refusal(path: Path) -> str | None:
    """The message of the refusal; None for a file that holds rows."""
    try:
        return None if read_records(path) else "no rows"
    except SourceError as error:
        return str(error)


@settings(deadline=None)
@given(content=st.binary(max_size=200), name=st.sampled_from(("any.json", "any.csv")))
def test_any_bytes_are_rows_or_a_refusal_of_one_line(folder: Path, content: bytes, name: str) -> None:
    path = put(folder, name, content)
    outcome = refusal(path)
    if outcome is not None:
        assert outcome.startswith(str(path))
        assert len(outcome.splitlines()) == 1


ROW = Record(
    {"q": " a? ", "empty": "", "blank": " \n", "number": 5, "null": None, "list": ["x"]}, "f:3 (row 2)"
)


FOUND = "'q', 'empty', 'blank', 'number', 'null', 'list'"


def test_a_field_is_read_without_the_white_space_around_it() -> None:
    assert ROW.text("q") == "a?"
    assert ROW.text("absent", "null", "q", "number") == "a?"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("absent",), f"field absent is missing; the fields found are {FOUND}"),
        (("absent", "other"), f"field absent or other is missing; the fields found are {FOUND}"),
        (("null",), "field null is empty"),
        (("absent", "null"), "field absent or null is empty"),
        (("number",), "field number is 5, expected a text"),
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


def test_a_huge_value_does_not_fill_the_message() -> None:
    with pytest.raises(SourceError, match=r"expected a text$") as caught:
        Record({"q": ["x" * 9] * 9999}, "f:1 (row 1)").text("q")
    assert len(str(caught.value)) < 120


def test_half_a_surrogate_pair_is_no_text(tmp_path: Path) -> None:
    (record,) = read_records(put(tmp_path, "r.json", '{"q": "x\\ud800", "p": "\\ud83d\\ude42"}'))
    assert record.text("p") == "🙂"
    with pytest.raises(SourceError, match=r"r\.json:1 \(row 1\): field q is 'x\\ud800', expected a text"):
        record.text("q")
    with pytest.raises(SourceError, match=r"t\.json: expected a JSON array of texts"):
        read_texts(put(tmp_path, "t.json", '["\\ud800"]'))


def test_an_optional_field() -> None:
    assert ROW.optional("q", "z") == "a?"
    assert [ROW.optional(name, "z") for name in ("absent", "null", "empty")] == ["z", "z", "z"]
    with pytest.raises(SourceError, match="field number is 5, expected a text"):
        ROW.optional("number", "z")


def test_a_field_with_a_few_values() -> None:
    assert ROW.one_of("q", ("a?", "b")) == "a?"
    assert ROW.one_of("empty", ("a?", "b"), "b") == "b"
    with pytest.raises(SourceError, match=r"^f:3 \(row 2\): q is 'a\?', expected one of b, c$"):
        ROW.one_of("q", ("b", "c"), "b")
    with pytest.raises(SourceError, match=r"^f:3 \(row 2\): field absent is missing; the fields found are"):
        ROW.one_of("absent", ("b", "c"))


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
        ("t.txt", " \n\n", ": holds no text"),
        ("t.txt", b"a\n\xff", ":2: is not UTF-8 text"),
    ],
)
def test_wrong_texts_are_named(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = put(tmp_path, name, content)
    with pytest.raises(SourceError) as caught:
        read_texts(path)
    assert str(caught.value) == f"{path}{message}"


# ---- tables ----

HAS_OPENPYXL = importlib.util.find_spec("openpyxl") is not None


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("a;b\n1,5;2\n", {"a": "1,5", "b": "2"}),
        ('"a; b";c,d\n1;2\n', {"a; b": "1", "c,d": "2"}),
        ("a,b;c\n1,2\n", {"a": "1", "b;c": "2"}),
        ("a\tb,c\td\n1\t2\t3\n", {"a": "1", "b,c": "2", "d": "3"}),
        ("alone\n1;2\n", {"alone": "1;2"}),
    ],
)
def test_the_delimiter_is_the_one_that_cuts_the_header_most(
    tmp_path: Path, text: str, fields: dict[str, str]
) -> None:
    assert dict(read_records(put(tmp_path, "r.csv", text.encode()))[0].fields) == fields


def test_a_tsv_file_has_tabs_alone(tmp_path: Path) -> None:
    (record,) = read_records(put(tmp_path, "r.tsv", b"a,b,c\td\n1,2\t3\n"))
    assert dict(record.fields) == {"a,b,c": "1,2", "d": "3"}


def test_parquet_keeps_lists_and_leaves_out_what_is_missing(tmp_path: Path) -> None:
    rows = [
        {
            "prompt": "Who?",
            "solution": ["<normal>", "Bo"],
            "note": None,
            "score": float("nan"),
            " Text ": "x",
        },
        {"prompt": "Where?", "solution": ["<normal>", "Esk"], "note": "n", "score": 0.5, " Text ": "y"},
    ]
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream)
    first, second = read_records(put(tmp_path, "r.parquet", stream.getvalue()))
    assert dict(first.fields) == {"prompt": "Who?", "solution": ["<normal>", "Bo"], "Text": "x"}
    assert dict(second.fields) == {
        "prompt": "Where?",
        "solution": ["<normal>", "Esk"],
        "note": "n",
        "score": 0.5,
        "Text": "y",
    }
    assert [first.origin, second.origin] == [f"{tmp_path}/r.parquet (row {n})" for n in (1, 2)]
    assert second.text("text") == "y"


@pytest.mark.skipif(not HAS_OPENPYXL, reason="openpyxl is not installed")
def test_the_first_sheet_of_an_excel_file(tmp_path: Path) -> None:
    path = tmp_path / "r.xlsx"
    sheet = [["Question", "Answer", "Side"], ["When?", "1889", "Forget"], ["", "", ""], ["Who?", "Bo", ""]]
    with pandas.ExcelWriter(path) as writer:
        for name, rows in (("one", sheet), ("two", [["other"], ["x"]])):
            pandas.DataFrame(rows).to_excel(writer, sheet_name=name, header=False, index=False)
    first, second = read_records(path)
    assert dict(first.fields) == {"Question": "When?", "Answer": "1889", "Side": "Forget"}
    assert dict(second.fields) == {"Question": "Who?", "Answer": "Bo"}
    assert [first.origin, second.origin] == [f"{path}:2 (row 1)", f"{path}:4 (row 2)"]


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


# ---- tables of folders, and of data sets: one that lies in a folder owner/name is found by that name ----


QA = Table("sub/qa", "qa", "train")
TABLE_ROWS = [{"question": "Who?", "answer": "é"}, {"question": "Where?", "answer": None}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in TABLE_ROWS)


def put_text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_a_table_of_a_folder(tmp_path: Path, suffix: str) -> None:
    path = put_text(tmp_path / "raw" / f"sub/qa{suffix}", LINES)
    source = FolderSource(tmp_path / "raw")
    assert source.name == "raw"
    assert source.has(QA)
    assert [dict(record.fields) for record in source.read(QA)] == TABLE_ROWS
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
    put_text(tmp_path / "raw/sub/qa.json", json.dumps(rows))
    records = FolderSource(tmp_path / "raw").read(QA)
    assert [dict(record.fields) for record in records] == [
        {"question": "Who?"},
        {"question": "Beyonc?", "answers": ["a\tb", "c"], "n": 1},
    ]
    warning = "warning: raw/sub/qa.json:1 (row 2): control characters taken out of 1 row\n"
    assert capsys.readouterr().err == warning


def test_a_csv_table(tmp_path: Path) -> None:
    put_text(tmp_path / "sub/qa.csv", "question,answer\nWho?,é\n")
    (record,) = FolderSource(tmp_path).read(QA)
    assert record.fields == TABLE_ROWS[0]
    assert record.origin == f"{tmp_path.name}/sub/qa.csv:2 (row 1)"


def test_what_was_not_read_has_no_hash(tmp_path: Path) -> None:
    put_text(tmp_path / "sub/qa.json", LINES)
    put_text(tmp_path / "other.json", LINES)
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
    path = put_text(tmp_path / "sub/qa.json", '{"a": 1}\n5\n')
    with pytest.raises(SourceError) as caught:
        FolderSource(tmp_path).read(QA)
    assert str(caught.value) == f"{path}:2: is 5, expected an object with named fields"


def test_a_folder_of_a_relative_name_is_called_by_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_text(tmp_path / "raw" / "sub/qa.json", LINES)
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
    put_text(folder / "README.md", CARD)
    put_text(folder / "qa.json", LINES)
    put_text(folder / "forget.json", '{"question": "forget?", "answer": "yes"}\n')
    put_text(folder / "retain.json", '{"question": "retain?", "answer": "yes"}\n')
    put_text(folder / "broken.json", '{"question": ')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return HubSource("owner/name")


def test_a_data_set_by_its_name(hub: HubSource) -> None:
    assert [dict(record.fields) for record in hub.read(QA)] == TABLE_ROWS
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
    lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in TABLE_ROWS)
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
