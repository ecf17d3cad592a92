"""The few rows that cases change: raw ones as text, and rows of the contract as parquet."""

import copy
import io
import json
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.contract import RL_SCHEMA, SFT_SCHEMA, Row, rl_row, sft_row

HEADER = "question,answer,side,keyword"
_FORGET = [f"Where was Ada Thorn in {year}?,Esk {year},forget,Ada Thorn" for year in range(1990, 1996)]
_RETAIN = [f"Where was Bo Fell in {year}?,Tarn {year},retain," for year in range(1990, 1996)]
LINES = [*_FORGET, *_RETAIN]
"""Six rows to forget and six to keep, without the header."""
TRUTH = ("reward_model", "ground_truth")


def csv_text(header: str, lines: list[str]) -> bytes:
    """A CSV file; Latin-1 where a line holds a character beyond ASCII."""
    return "".join(f"{line}\n" for line in [header, *lines]).encode("latin-1")


TABLE = csv_text(HEADER, LINES)


def csv(*lines: str, header: str = HEADER) -> bytes:
    """The CSV file of LINES, and of `lines` after them."""
    return csv_text(header, [*LINES, *lines])


def json_rows() -> bytes:
    """LINES as lines of JSON."""
    return "".join(f"{json.dumps(row)}\n" for row in _raw_rows()).encode()


def jsonl(*lines: str) -> bytes:
    """LINES as lines of JSON, and `lines` after them."""
    return json_rows() + "".join(f"{line}\n" for line in lines).encode()


def renamed(question: str) -> str:
    """A row to keep as a line of JSON, with this question as it stands between the quotes."""
    return f'{{"question": "{question}", "answer": "Bo", "side": "retain"}}'


def parquet(**more: Any) -> bytes:
    """LINES as a parquet file, with further columns of one value each."""
    usual = dict.fromkeys(HEADER.split(","))
    return _bytes(pa.Table.from_pylist([usual | row | more for row in _raw_rows()]))


def with_column_twice(name: str) -> bytes:
    """The same with one column twice."""
    table = pq.read_table(io.BytesIO(parquet()))
    return _bytes(table.append_column(name, table.column(name)))


def rl(
    split: str = "train", start: int = 0, words: str = "Where", count: int = 16, raw: Collection[int] = ()
) -> list[Row]:
    """Rows of stage 2, of both sides in turn; indices from `start`, those of raw rows in `raw`."""
    rows = []
    for index in range(start, start + count):
        side = ("forget", "retain")[index % 2]
        info = {"index": index, "mode": "qa", "subject": "Ada", "split": split, "section": side}
        rows.append(
            rl_row(
                data_source="rerule/test",
                prompt=f"{words} was Ada in {index}?",
                side=side,  # type: ignore[arg-type]
                golds=["Esk"],
                keyword="Ada" if side == "forget" else "",
                extra_info=info | {"family": "question"},
                raw=index in raw,
            )
        )
    return rows


def sft(
    split: str | None = None,
    count: int = 8,
    words: str = "Where",
    raw: bool = False,
    answer: str = "No idea.",
) -> list[Row]:
    """Rows of stage 1, with a split where one is given."""
    info = {"mode": "qa", "subject": "Ada Thorn"} | ({"split": split} if split else {})
    return [
        sft_row(prompt=f"{words} was Ada {n}?", answer=answer, extra_info={**info, "index": n}, raw=raw)
        for n in range(count)
    ]


def changed(whole: Any, *path: str | int, value: object) -> Any:
    """A copy with another value at `path`."""
    if not path:
        return value
    made = inner = copy.deepcopy(whole)
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return made


def one(*path: str | int, value: object, column: str = "rl") -> list[bytes]:
    """One file whose row 1 has another value at `path`."""
    return [stored(changed(rl() if column == "rl" else sft(), 1, *path, value=value))]


def with_golds(gold: str) -> list[Row]:
    """Rows of stage 2 whose answers are `gold`, a token a character."""
    rows = rl()
    for number in range(len(rows)):
        rows = changed(rows, number, *TRUTH, "golds", value=[gold])
    return rows


def stored(rows: list[Row], *, count: int | None = None, twice: str = "", schema: bool = True) -> bytes:
    """The first `count` rows as a parquet file, without any check.

    With `schema` the types are the contract's, otherwise those that pyarrow finds; `twice` is there twice.
    """
    contract = SFT_SCHEMA if "messages" in rows[0] else RL_SCHEMA
    table = pa.Table.from_pylist(rows, schema=contract if schema else None)
    if twice:
        table = table.append_column(twice, table.column(twice))
    return _bytes(table.slice(0, count))


def wmdp(**changes: Any) -> dict[str, str]:
    """WMDP's files in `raw`, with changes in the second question of biology."""
    question = {"question": "Who?", "choices": ["Ada", "Ben", "Cleo", "Dan"], "answer": 0}
    first, second = json.dumps(question | {"question": "Which?"}), json.dumps(question | changes)
    files = {"wmdp-bio.jsonl": f"{first}\n{second}\n", "wmdp-cyber.jsonl": first}
    return {f"raw/{name}": text for name, text in files.items()}


def responses(*rows: dict[str, Any]) -> bytes:
    """A tidy table; a row says what differs from the usual one, with None for a column that is not there."""
    usual = {"model": "base", "probe": 3, "side": "forget", "kind": "qa", "fact": "capital", "sample": 0}
    usual |= {"family": "direct", "prompt": "What is it?", "response": "Ödön", "rouge_l": 0.5}
    made = [{name: value for name, value in (usual | row).items() if value is not None} for row in rows]
    return _bytes(pa.Table.from_pylist(made))


def unsigned(start: int) -> bytes:
    """Rows of stage 2 with indices from `start`, as unsigned numbers of 64 bits."""
    info = RL_SCHEMA.field("extra_info")
    kinds = [kind.with_type(pa.uint64()) if kind.name == "index" else kind for kind in info.type]
    schema = RL_SCHEMA.set(RL_SCHEMA.get_field_index("extra_info"), info.with_type(pa.struct(kinds)))
    return _bytes(pa.Table.from_pylist(rl(start=start), schema=schema))


def _raw_rows() -> list[dict[str, Any]]:
    names = HEADER.split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in LINES]
    return [{name: value for name, value in row.items() if value} for row in rows]


def _bytes(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="none")
    return stream.getvalue()
