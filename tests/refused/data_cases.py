"""Files of rows that were tried: raw ones for `data_prep custom`, parquet for stages 1 and 2 and evaluate.

What a case holds is made when it is tried, from the few rows of `tests.refused.rows`.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass

from data_prep.contract import Row
from tests.refused.cases import Case
from tests.refused.rows import (
    HEADER,
    LINES,
    changed,
    csv_text,
    json_rows,
    parquet,
    renamed,
    rl,
    sft,
    stored,
    unsigned,
    with_column_twice,
)


@dataclass(frozen=True)
class RawCase(Case):
    """A file given to `data_prep custom --source`.

    file: its name. make: its bytes. line: what the refusal holds.
    """

    file: str
    make: Callable[[], bytes]
    line: str = ""


@dataclass(frozen=True)
class RowsCase(Case):
    """Parquet files of a stage, or of `evaluate model --probes`.

    command: "stage1", "stage2" or "evaluate".
    train: the bytes of each training file (or of the probes), or the number of an earlier one, given again.
    validation: of each validation file, likewise.
    line: what the refusal or the warning holds.
    """

    command: str
    train: Callable[[], list[bytes | int]]
    line: str = ""
    validation: Callable[[], list[bytes | int]] | None = None


def _raw(name: str, file: str, make: Callable[[], bytes], line: str) -> RawCase:
    return RawCase("raw files of data_prep", name, "refused", file, make, line)


def _read(name: str, file: str, make: Callable[[], bytes]) -> RawCase:
    return RawCase("raw files of data_prep", name, "valid", file, make)


def _csv(*lines: str, header: str = HEADER) -> Callable[[], bytes]:
    return lambda: csv_text(header, [*LINES, *lines])


def _jsonl(*lines: str) -> Callable[[], bytes]:
    return lambda: json_rows() + "".join(f"{line}\n" for line in lines).encode()


RAW = [
    _read("comma-separated", "mine.csv", _csv()),
    _read("semicolons", "mine.csv", lambda: csv_text(HEADER, LINES).replace(b",", b";")),
    _read("tabs in a .csv file", "mine.csv", lambda: csv_text(HEADER, LINES).replace(b",", b"\t")),
    _read("a .tsv file", "mine.tsv", lambda: csv_text(HEADER, LINES).replace(b",", b"\t")),
    _read("a byte order mark", "mine.csv", lambda: b"\xef\xbb\xbf" + csv_text(HEADER, LINES)),
    _read("line ends of Windows", "mine.csv", lambda: csv_text(HEADER, LINES).replace(b"\n", b"\r\n")),
    _read("column names in capitals", "mine.csv", _csv(header="Question, ANSWER ,Side,KeyWord")),
    _read(
        "sides in capitals", "mine.csv", _csv("Who is Ada?,Nobody,Forget,Ada Thorn", "Who is it?,Bo,RETAIN ,")
    ),
    _read("a quoted line end", "mine.csv", _csv('"Where\nwas she?","In\nEsk",retain,')),
    _read("blank lines", "mine.csv", lambda: csv_text(HEADER, ["", *LINES, "", ""])),
    _read(
        "a further column", "mine.csv", lambda: csv_text(f"{HEADER},note", [f"{line},x" for line in LINES])
    ),
    _read("an array of JSON", "mine.json", lambda: b"[" + b",".join(json_rows().splitlines()) + b"]"),
    _read("lines of JSON", "mine.jsonl", _jsonl()),
    _read("JSON with names in capitals", "mine.jsonl", lambda: json_rows().replace(b'"side"', b'"Side"')),
    _read("JSON with letters of any script", "mine.jsonl", _jsonl(renamed("\U0001d4d0 \u6a21\u578b?"))),
    _read("parquet", "mine.parquet", parquet),
    _read("parquet with a column of NaN", "mine.parquet", lambda: parquet(refusal=float("nan"))),
    _raw("a missing file", "none.csv", lambda: b"", "cannot be read (No such file or directory)"),
    _raw("a folder", "folder.csv", lambda: b"", "cannot be read (Is a directory)"),
    _raw("a pipe", "pipe.csv", lambda: b"", "cannot be read (it is no regular file)"),
    _raw("an empty file", "mine.csv", lambda: b"", ": holds no rows"),
    _raw("a header alone", "mine.csv", lambda: csv_text(HEADER, []), ": holds no rows"),
    _raw(
        "a gzip archive",
        "mine.csv",
        lambda: gzip.compress(csv_text(HEADER, LINES)),
        ":1: is not UTF-8 text; unpack an archive",
    ),
    _raw("a zip archive", "mine.csv", lambda: b"PK\x03\x04" + bytes(40), ":1: is not UTF-8 text"),
    _raw("parquet named .csv", "mine.csv", parquet, "let the name of a parquet file end in .parquet"),
    _raw("CSV named .parquet", "mine.parquet", _csv(), ": is no readable parquet file"),
    _raw("CSV named .txt", "mine.txt", _csv(), "; a table must be named .csv"),
    _raw("CSV named .json", "mine.json", _csv(), ":1: is not JSON (Expecting value)"),
    _raw("parquet cut off", "mine.parquet", lambda: parquet()[:-20], ": is no readable parquet file"),
    _raw(
        "an old Excel file",
        "mine.xls",
        lambda: b"\xd0\xcf\x11\xe0",
        ": a .xls file cannot be read; save it as",
    ),
    _raw("bytes at random", "mine.csv", lambda: b"\x80\x13\xfe" * 50, ":1: is not UTF-8 text"),
    _raw("Latin-1", "mine.csv", _csv("Wer?,Jos\u00e9,retain,"), ":14: is not UTF-8 text"),
    _raw(
        "UTF-16",
        "mine.csv",
        lambda: csv_text(HEADER, LINES).decode().encode("utf-16"),
        ":1: is not UTF-8 text",
    ),
    _raw(
        "UTF-16 without a mark",
        "mine.csv",
        lambda: csv_text(HEADER, LINES).decode().encode("utf-16-le"),
        ":1: is not UTF-8 text",
    ),
    _raw("a NUL in a cell", "mine.csv", _csv("Who\0?,Bo,retain,"), ":14: is not UTF-8 text"),
    _raw(
        "a NUL in JSON",
        "mine.jsonl",
        _jsonl(renamed("Who\\u0000?")),
        ":13 (row 13): field question holds the control character U+0000 at character 4; take it out",
    ),
    _raw(
        "a control character",
        "mine.csv",
        _csv("Who?,Bo\x1b[0m,retain,"),
        ":14 (row 13): field answer holds the control character U+001B at character 3",
    ),
    _raw(
        "half a surrogate pair", "mine.jsonl", _jsonl(renamed("Who\\ud800?")), ":13 (row 13): field question"
    ),
    _raw(
        "a missing column",
        "mine.csv",
        lambda: csv_text("question,reply,side,keyword", LINES),
        ":2 (row 1): field answer is missing; the columns found are 'question', 'reply', 'side', 'keyword'",
    ),
    _raw(
        "no column of sides",
        "mine.csv",
        lambda: csv_text("question,answer,kind,keyword", LINES),
        ":2 (row 1): field side is missing; the columns found are 'question', 'answer', 'kind', 'keyword'",
    ),
    _raw("no header", "mine.csv", lambda: csv_text(LINES[0], LINES[1:]), ":2 (row 1): field side is missing"),
    _raw(
        "vertical bars between columns",
        "mine.csv",
        lambda: csv_text(HEADER, LINES).replace(b",", b"|"),
        ":2 (row 1): field side is missing; the columns found are 'question|answer|side|keyword'",
    ),
    _raw(
        "a missing key in JSON",
        "mine.jsonl",
        _jsonl('{"question": "Who?", "side": "retain"}'),
        ":13 (row 13): field answer is missing; the fields found are 'question', 'side'",
    ),
    _raw(
        "a column twice",
        "mine.csv",
        _csv(header="question,answer,side,answer"),
        ":1: column 'answer' is there twice",
    ),
    _raw(
        "a column twice but for case",
        "mine.csv",
        _csv(header="question,answer,side,Answer"),
        ":1: column 'answer' is there twice",
    ),
    _raw(
        "a column of parquet twice",
        "mine.parquet",
        lambda: with_column_twice("answer"),
        ": column 'answer' is there twice",
    ),
    _raw(
        "a key twice",
        "mine.jsonl",
        _jsonl('{"question": "Who?", "answer": "a", "side": "retain", "answer": "b"}'),
        ":13 (row 13): key 'answer' is there twice; keep one of them",
    ),
    _raw(
        "a key twice but for case",
        "mine.jsonl",
        _jsonl('{"QUESTION": "a", "Question": "b", "side": "retain"}'),
        ":13 (row 13): fields 'QUESTION' and 'Question' are both question",
    ),
    _raw("too many cells", "mine.csv", _csv("Who?,Bo,retain,,"), ":14: has 5 columns, the header 4"),
    _raw("too few cells", "mine.csv", _csv("Who?,Bo"), ":14: has 2 columns, the header 4"),
    _raw(
        "a quote that does not end",
        "mine.csv",
        _csv('"Who?,Bo,retain,'),
        ":14: is not CSV (unexpected end of data)",
    ),
    _raw(
        "an unknown side",
        "mine.csv",
        _csv("Who?,Bo,keep,"),
        ":14 (row 13): side is 'keep', expected one of forget, retain",
    ),
    _raw(
        "an empty side",
        "mine.csv",
        _csv("Who?,Bo,,"),
        ":14 (row 13): field side is empty; expected one of forget",
    ),
    _raw("an empty answer", "mine.csv", _csv("Who?, ,retain,"), ":14 (row 13): field answer is empty"),
    _raw(
        "NaN as a cell",
        "mine.csv",
        _csv("Who?,NaN,retain,"),
        ":14 (row 13): field answer is NaN, which stands for a missing value",
    ),
    _raw(
        "NaN in JSON",
        "mine.jsonl",
        _jsonl('{"question": "Who?", "answer": NaN, "side": "retain"}'),
        ":13 (row 13): field answer is nan, expected a text",
    ),
    _raw(
        "a number in JSON",
        "mine.jsonl",
        _jsonl('{"question": "Who?", "answer": 1e999, "side": "retain"}'),
        ":13 (row 13): field answer is inf, expected a text",
    ),
    _raw(
        "a number of 5,000 digits",
        "mine.jsonl",
        _jsonl('{"question": ' + "1" * 5000 + "}"),
        ":13: cannot be read (Exceeds the limit",
    ),
    _raw(
        "10,000 lists in each other",
        "mine.jsonl",
        _jsonl('{"question": ' + "[" * 10_000 + "]" * 10_000 + "}"),
        ":13: cannot be read (maximum recursion depth exceeded",
    ),
    _raw(
        "400 lists in each other",
        "mine.jsonl",
        _jsonl('{"side": "retain", "question": ' + "[" * 400 + "]" * 400 + "}"),
        ":13 (row 13): field question is [[[[[[",
    ),
    _raw(
        "JSON cut off",
        "mine.jsonl",
        _jsonl('{"question": "Who'),
        ":13: is not JSON (Invalid control character",
    ),
    _raw(
        "no row to forget",
        "mine.csv",
        lambda: csv_text(HEADER, LINES[6:]),
        "no training prompt of side forget",
    ),
    _raw(
        "no row to keep", "mine.csv", lambda: csv_text(HEADER, LINES[:6]), "no training prompt of side retain"
    ),
    _raw(
        "no keyword",
        "mine.csv",
        _csv("Who?,Bo,forget,"),
        ":14 (row 13): field keyword is missing; give it, or",
    ),
]


def _rows(
    command: str,
    name: str,
    train: Callable[[], list[bytes | int]],
    line: str = "",
    validation: Callable[[], list[bytes | int]] | None = None,
    outcome: str = "refused",
) -> RowsCase:
    group = "probes of evaluate" if command == "evaluate" else f"rows of {command.replace('stage', 'stage ')}"
    return RowsCase(group, name, outcome, command, train, line, validation)  # type: ignore[arg-type]


def _one(*path: str | int, value: object, column: str = "rl") -> Callable[[], list[bytes | int]]:
    """One file whose row 1 has another value at `path`."""
    return lambda: [stored(changed(rl() if column == "rl" else sft(), 1, *path, value=value))]


_PATH = ("reward_model", "ground_truth")


def _with_golds(gold: str) -> list[Row]:
    """Rows whose answers are `gold`, a token a character: on the forget side no response has to hold it."""
    rows = rl()
    for number in range(len(rows)):
        rows = changed(rows, number, *_PATH, "golds", value=[gold])
    return rows


STAGE2 = [
    _rows("stage2", "rows of both sides", lambda: [stored(rl())], outcome="valid"),
    _rows(
        "stage2",
        "validation on the probes",
        lambda: [stored(rl())],
        validation=lambda: [stored(rl("probe", start=50))],
        outcome="valid",
    ),
    _rows(
        "stage2",
        "rows that are probes",
        lambda: [stored(rl("probe"))],
        "row 0: extra_info.split is 'probe': a model must not be trained on",
    ),
    _rows(
        "stage2",
        "one row that is a probe",
        _one("extra_info", "split", value="probe"),
        "row 1: extra_info.split is 'probe'",
    ),
    _rows(
        "stage2",
        "a second file of probes",
        lambda: [stored(rl()), stored(rl("probe", start=50))],
        "train1.parquet: row 0: extra_info.split is 'probe'",
    ),
    _rows(
        "stage2",
        "rows of validation",
        lambda: [stored(rl("val"))],
        "row 0: extra_info.split is 'val': validation rows are drawn from the probes",
        outcome="warned",
    ),
    _rows(
        "stage2",
        "validation on the training rows",
        lambda: [stored(rl())],
        "every row of data.val_files is also in data.train_files",
        lambda: [0],
        "warned",
    ),
    _rows(
        "stage2", "the same file twice", lambda: [stored(rl()), 0], "row 0 is also row 0 of", outcome="warned"
    ),
    _rows(
        "stage2",
        "two files with the same indices",
        lambda: [stored(rl()), stored(rl(words="other"))],
        "row 0: extra_info.index 0 is also that of row 0 of",
        outcome="warned",
    ),
    _rows(
        "stage2",
        "no row to forget",
        lambda: [stored(rl()[1::2])],
        "hold no row of type forget, so nothing is to be forgotten",
        outcome="warned",
    ),
    _rows(
        "stage2",
        "no row to keep",
        lambda: [stored(rl()[::2])],
        "hold no row of type retain; without boundary prompts a model learns to refuse everything",
        outcome="warned",
    ),
    _rows(
        "stage2",
        "right answers longer than a response",
        lambda: [stored(_with_golds("x" * 30))],
        "max_response_length is 24, but the right answers of the retain rows of",
        outcome="warned",
    ),
    _rows("stage2", "right answers as long", lambda: [stored(_with_golds("x" * 23))], outcome="valid"),
    _rows(
        "stage2",
        "a control character",
        _one("prompt", 0, "content", value="Who\0?"),
        "row 1: prompt.content holds the control character U+0000 at character 4",
        outcome="warned",
    ),
    _rows(
        "stage2",
        "stage 1's file",
        lambda: [stored(sft())],
        "column data_source is missing; the columns found are messages, extra_info",
    ),
    _rows("stage2", "an empty file", lambda: [b""], "train0.parquet: is empty"),
    _rows(
        "stage2", "a file that is no parquet", lambda: [b"question,answer\n"], "not a readable parquet file"
    ),
    _rows("stage2", "a file cut off", lambda: [stored(rl())[:-30]], "not a readable parquet file"),
    _rows("stage2", "a gzip archive", lambda: [gzip.compress(stored(rl()))], "not a readable parquet file"),
    _rows("stage2", "no rows", lambda: [stored(rl(), count=0)], "train0.parquet: no rows"),
    _rows(
        "stage2",
        "a column twice",
        lambda: [stored(rl(), twice="data_source")],
        "column data_source is there twice",
    ),
    _rows(
        "stage2",
        "text that is not UTF-8",
        lambda: [stored(rl()).replace(b"rerule/test", b"rerule/\xfftst")],
        "holds a text that is not UTF-8",
    ),
    _rows(
        "stage2",
        "an index beyond 64 bits",
        lambda: [unsigned(2**63)],
        "row 0: extra_info.index is 9223372036854775808, expected less than 9223372036854775808",
    ),
    _rows(
        "stage2",
        "an index twice",
        _one("extra_info", "index", value=0),
        "row 1: extra_info.index 0 occurs before",
    ),
    _rows(
        "stage2",
        "an unknown side",
        _one(*_PATH, "type", value="Forget"),
        "ground_truth.type is 'Forget', expected",
    ),
    _rows(
        "stage2",
        "no right answer",
        _one(*_PATH, "golds", value=[]),
        "row 1: reward_model.ground_truth.golds is",
    ),
    _rows(
        "stage2", "an empty prompt", _one("prompt", 0, "content", value=" "), "row 1: prompt.content is empty"
    ),
]
STAGE1 = [
    _rows("stage1", "refusals", lambda: [stored(sft())], outcome="valid"),
    _rows(
        "stage1",
        "rows that are probes",
        lambda: [stored(sft("probe"), schema=False)],
        "row 0: extra_info.split is 'probe'",
    ),
    _rows(
        "stage1",
        "stage 2's file",
        lambda: [stored(rl())],
        "column messages is missing; the columns found are data_so",
    ),
    _rows(
        "stage1",
        "the same file twice",
        lambda: [stored(sft()), 0],
        "row 0 is also row 0 of",
        outcome="warned",
    ),
    _rows(
        "stage1",
        "validation on the training rows",
        lambda: [stored(sft())],
        "every row of data.val_files is also in data.train_files",
        lambda: [0],
        "warned",
    ),
    _rows(
        "stage1",
        "a control character",
        _one("messages", 1, "content", value="I don't know.\x07", column="sft"),
        "row 1: messages.content holds the control character U+0007",
        outcome="warned",
    ),
    _rows(
        "stage1",
        "no answer",
        _one("messages", 1, "role", value="user", column="sft"),
        "row 1: messages.role ends with 'user'",
    ),
    _rows("stage1", "bytes at random", lambda: [b"\x93\x12" * 40], "not a readable parquet file"),
]
EVALUATE = [
    _rows("evaluate", "probes", lambda: [stored(rl("probe"))], outcome="valid"),
    _rows(
        "evaluate",
        "training rows",
        lambda: [stored(rl())],
        "row 0: extra_info.split is 'train': models may have been trained on these rows",
        outcome="warned",
    ),
    _rows(
        "evaluate",
        "a control character",
        lambda: [stored(changed(rl("probe"), 1, "prompt", 0, "content", value="Who\0?"))],
        "U+0000",
        outcome="warned",
    ),
    _rows(
        "evaluate",
        "stage 1's file",
        lambda: [stored(sft())],
        "column data_source is missing; the columns found are",
    ),
    _rows("evaluate", "a file cut off", lambda: [stored(rl())[:-30]], "not a readable parquet file"),
    _rows("evaluate", "an empty file", lambda: [b""], "is empty"),
]
ROWS = [*STAGE1, *STAGE2, *EVALUATE]
CASES: list[Case] = [*RAW, *ROWS]
