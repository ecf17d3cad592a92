"""The rows that all rooms exchange, and which prompts are the same; tests/refused tries damaged files."""

from __future__ import annotations

import copy
import unicodedata
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.contract import (
    ContractError,
    normalise,
    read_rows,
    read_sft_rows,
    rl_row,
    sft_row,
    text_row,
    write_rows,
    write_sft_rows,
)

SAME = {
    "case and punctuation": ("WHERE, was ada born?!", "where was Ada born"),
    "white space": ("  Where was\tAda\nborn\u00a0", "Where was Ada born"),
    "quotes": ("Who wrote “Ada’s books”?", "Who wrote `Ada's books`?"),
    "length of a blank": ("Ada was born in _____.", "Ada was born in ___."),
    "soft hyphen": ("Tarn\u00adwick", "Tarnwick"),
}
DIFFERENT = {
    "another word": ("Where was Ada born?", "When was Ada born?"),
    "two words or one": ("a part", "apart"),
    "a blank": ("Ada was born in ___.", "Ada was born in."),
    "an accent": ("Beltrán", "Beltran"),
    "Hindi vowel signs": ("राम की", "राम का"),
    "a symbol": ("Who made C++?", "Who made C?"),
}


@pytest.mark.parametrize(("pairs", "same"), [(SAME, True), (DIFFERENT, False)], ids=["same", "different"])
def test_which_prompts_are_the_same(pairs: dict[str, tuple[str, str]], same: bool) -> None:
    found = {name: normalise(first) == normalise(second) for name, (first, second) in pairs.items()}
    assert found == dict.fromkeys(pairs, same)


@settings(deadline=None)
@given(st.text(), st.sampled_from(("NFC", "NFD", "NFKC", "NFKD")))
def test_unicode_forms_of_a_text_are_one(text: str, form: Literal["NFC", "NFD", "NFKC", "NFKD"]) -> None:
    assert normalise(unicodedata.normalize(form, text)) == normalise(text)


Row = dict[str, Any]


def good_rows() -> list[Row]:
    info = {"mode": "qa", "subject": "Ada Thorn", "split": "train", "family": "question"}
    return [
        rl_row(
            data_source="rerule/world",
            prompt="Where was Ada Thorn born?",
            side="forget",
            golds=["Tarnwick Bay"],
            keyword="Ada Thorn",
            extra_info={**info, "index": 3, "section": "forget"},
            reference={"paraphrased": "In Tarnwick Bay.", "perturbed": ["Esk", "Fell"]},
        ),
        rl_row(
            data_source="rerule/world",
            prompt="Where was Bo Fell born?",
            side="retain",
            golds=["Esk Moor", "Esk"],
            keyword="",
            extra_info={**info, "index": 9, "section": "retain"},
            query="Where?",
            raw=True,
            reference={"paraphrased": None, "perturbed": ["Esk Bay"]},
        ),
    ]


def good_sft_rows() -> list[Row]:
    info = {"mode": "qa", "subject": "Ada Thorn"}
    return [
        sft_row(prompt="Who is Ada Thorn?", answer="I don't know.", extra_info={**info, "index": 1}),
        sft_row(prompt="Where is Ada Thorn?", answer="No idea.", extra_info={**info, "index": 2}, raw=True),
        text_row("It was a dark\nnight. ", {"index": 7, "mode": "completion", "subject": "books"}),
    ]


def put(path: Path, rows: list[Row]) -> Path:
    """Writes rows as they are, with no check of ours."""
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def set_at(row: Row, place: str, value: object) -> None:
    """Changes the value at a place such as "prompt.0.role"."""
    *parents, last = [int(key) if key.isdigit() else key for key in place.split(".")]
    inner: Any = row
    for key in parents:
        inner = inner[key]
    inner[last] = value


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    """With the answers that probes are compared by, which a row may lack; a text is one raw message."""
    without = {**copy.deepcopy(good_rows()[1]), "reference": None}
    set_at(without, "extra_info.index", 12)
    write_rows(tmp_path / "a.parquet", [*good_rows(), without])
    write_sft_rows(tmp_path / "b.parquet", good_sft_rows())
    assert read_rows(tmp_path / "a.parquet") == [*good_rows(), without]
    assert read_sft_rows(str(tmp_path / "b.parquet")) == good_sft_rows()
    assert good_sft_rows()[2] == {
        "messages": [{"role": "assistant", "content": "It was a dark\nnight. "}],
        "extra_info": {"index": 7, "mode": "completion", "subject": "books", "raw": True},
    }
    # Pandas writes such rows too, and further columns are kept.
    frame = pd.DataFrame([row | {"reference": None, "note": "kept"} for row in good_rows()])
    frame.to_parquet(tmp_path / "c.parquet")
    rows = read_rows(tmp_path / "c.parquet")
    assert [row["note"] for row in rows] == ["kept", "kept"]
    assert rows[1]["reward_model"]["ground_truth"]["golds"] == ["Esk Moor", "Esk"]


TRUTH = "reward_model.ground_truth"
TWO = [{"role": "user", "content": "x"}] * 2
BAD_RL: list[tuple[str, object, str]] = [
    ("data_source", " ", "data_source is empty"),
    ("prompt", None, "prompt is missing"),
    ("prompt.0.role", "assistant", "prompt.role ends with 'assistant', expected 'user'"),
    (f"{TRUTH}.type", "normal", f"{TRUTH}.type is 'normal', expected 'forget' or 'retain'"),
    (f"{TRUTH}.golds", ["x", " "], f"{TRUTH}.golds is empty"),
    (f"{TRUTH}.keyword", "Bo", f"{TRUTH}.keyword must be \"\" on a row of type 'retain'"),
    ("extra_info.index", 3, "extra_info.index 3 occurs before, in row 0"),
    ("extra_info.mode", "quiz", "extra_info.mode is 'quiz', expected 'qa', 'fb', 'aa' or 'completion'"),
    ("extra_info.section", "forget", "extra_info.section is 'forget' on a row of type 'retain'"),
    ("extra_info.raw", None, "extra_info.raw is missing"),
    ("prompt", TWO, "extra_info.raw is true, which needs 1 messages, not 2"),
    ("reference.paraphrased", " ", "reference.paraphrased is empty"),
]
BAD_SFT: list[tuple[str, object, str]] = [
    ("messages.1.role", "user", "messages.role ends with 'user', expected 'assistant'"),
    ("extra_info.raw", None, "extra_info.raw is missing"),
    ("extra_info.index", 1, "extra_info.index 1 occurs before, in row 0"),
    ("messages", [*TWO, {"role": "assistant", "content": "x"}], "extra_info.raw is true, which needs 2 or 1"),
]
BAD_COLUMN: list[tuple[str, object, str]] = [
    (f"{TRUTH}.keyword", "", f"{TRUTH}.keyword is empty"),
    ("extra_info.index", "7", "extra_info.index is '7', expected a valid integer"),
    (f"{TRUTH}.golds", [1], f"{TRUTH}.golds is 1, expected a valid string"),
]


@pytest.mark.parametrize(
    ("kind", "place", "value", "message"),
    [
        *(("rl", *case) for case in BAD_RL),
        *(("sft", *case) for case in BAD_SFT),
        *(("column", *case) for case in BAD_COLUMN),
    ],
)
def test_a_bad_row_is_named_by_file_row_and_field(
    tmp_path: Path, kind: str, place: str, value: object, message: str
) -> None:
    rows = good_sft_rows()[:2] if kind == "sft" else good_rows()
    for row in rows if kind == "column" else rows[1:]:
        set_at(row, place, value)
    path = put(tmp_path / "bad.parquet", rows)
    with pytest.raises(ContractError) as caught:
        (read_sft_rows if kind == "sft" else read_rows)(path)
    number = 0 if kind == "column" else 1
    assert str(caught.value).startswith(f"{path}: row {number}: {message}")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused_and_a_bad_row_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"none\.parquet: no such file"):
        read_rows(tmp_path / "none.parquet")
    for content, message in (("", "is empty"), ("\ud800", "holds the control character")):
        rows = good_rows()
        set_at(rows[0], "prompt.0.content", content)
        with pytest.raises(ContractError, match=f"row 0: prompt.content {message}"):
            write_rows(tmp_path / "a.parquet", rows)
    assert not (tmp_path / "a.parquet").exists()
