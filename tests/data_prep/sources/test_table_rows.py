from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.sources import SourceError, read_records

HAS_OPENPYXL = importlib.util.find_spec("openpyxl") is not None


def put(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


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


def workbook(*sheets: list[list[str]]) -> bytes:
    """An Excel file, written by hand, of sheets of texts; "" is a cell that is not there."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    of = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    numbers = range(1, len(sheets) + 1)
    files = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{kind}.sheet.main+xml"/>'
        + "".join(f'<Override PartName="/xl/s{n}.xml" ContentType="{kind}.worksheet+xml"/>' for n in numbers)
        + "</Types>",
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships">'
        f'<Relationship Id="r1" Type="{of}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{of}"><sheets>'
        + "".join(f'<sheet name="s{n}" sheetId="{n}" r:id="r{n}"/>' for n in numbers)
        + "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships">'
        + "".join(f'<Relationship Id="r{n}" Type="{of}/worksheet" Target="s{n}.xml"/>' for n in numbers)
        + "</Relationships>",
    }
    for n, rows in zip(numbers, sheets, strict=True):
        lines = "".join(
            f'<row r="{r}">'
            + "".join(_cell(f"{'ABCDE'[c]}{r}", text) for c, text in enumerate(row))
            + "</row>"
            for r, row in enumerate(rows, start=1)
        )
        files[f"xl/s{n}.xml"] = f'<worksheet xmlns="{main}"><sheetData>{lines}</sheetData></worksheet>'
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return stream.getvalue()


def _cell(place: str, text: str) -> str:
    if not text:
        return ""
    if text.isdecimal():
        return f'<c r="{place}"><v>{text}</v></c>'
    return f'<c r="{place}" t="inlineStr"><is><t>{text}</t></is></c>'


SHEET = [["Question", "Answer", "Side"], ["When?", "1889", "Forget"], ["", "", ""], ["Who?", "Bo", ""]]


@pytest.mark.skipif(not HAS_OPENPYXL, reason="openpyxl is not installed")
def test_the_first_sheet_of_an_excel_file(tmp_path: Path) -> None:
    path = put(tmp_path, "r.xlsx", workbook(SHEET, [["other"], ["x"]]))
    first, second = read_records(path)
    assert dict(first.fields) == {"Question": "When?", "Answer": "1889", "Side": "Forget"}
    assert dict(second.fields) == {"Question": "Who?", "Answer": "Bo"}
    assert [first.origin, second.origin] == [f"{path}:2 (row 1)", f"{path}:4 (row 2)"]


@pytest.mark.skipif(not HAS_OPENPYXL, reason="openpyxl is not installed")
@pytest.mark.parametrize("content", [b"", b"hello", workbook(SHEET)[:900]])
def test_what_is_no_excel_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SourceError, match=r"r\.xlsx: is no readable Excel file \(") as caught:
        read_records(put(tmp_path, "r.xlsx", content))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(HAS_OPENPYXL, reason="openpyxl is installed")
def test_without_openpyxl_an_excel_file_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"r\.xlsx: .*needs the package openpyxl.*pip install openpyxl"):
        read_records(put(tmp_path, "r.xlsx", workbook(SHEET)))
