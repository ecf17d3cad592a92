"""The rows that all rooms exchange, and what no text may hold."""

from __future__ import annotations

import copy
import string
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
    "case": ("WHERE was ada born", "where was Ada born"),
    "white space": ("  Where was\tAda\nborn ", "Where was Ada born"),
    "punctuation": ("Where, was Ada born?!", "Where was Ada born"),
    "dashes": ("Al-Kuwaiti – the author", "Al Kuwaiti the author"),
    "curly quotes": ("Who wrote “Carrie”?", 'Who wrote "Carrie"?'),
    "apostrophes": ("Ada’s books", "Ada's books"),
    "accent as an apostrophe": ("Ada´s books", "Ada's books"),
    "backtick": ("`Carrie` by King", "'Carrie' by King"),
    "ligature": ("The ﬁrst", "The first"),
    "full width": ("Ａｄａ　１９８０", "Ada 1980"),
    "decomposed accent": ("Beltra\u0301n", "Beltrán"),
    "long s and sharp s": ("STRASSE", "Straße"),
    "length of a blank": ("Ada was born in _____.", "Ada was born in ___."),
    "soft hyphen": ("Tarn\u00adwick", "Tarnwick"),
    "zero-width space": ("Tarn\u200bwick", "Tarnwick"),
    "byte order mark": ("\ufeffWhere", "Where"),
    "no-break space": ("Ada\u00a0Thorn", "Ada Thorn"),
}


@pytest.mark.parametrize(("first", "second"), SAME.values(), ids=SAME)
def test_the_same_prompt_in_another_form(first: str, second: str) -> None:
    assert normalise(first) == normalise(second)


DIFFERENT = {
    "another word": ("Where was Ada born?", "When was Ada born?"),
    "a word more": ("Where was Ada born?", "Where was Ada Thorn born?"),
    "two words or one": ("a part", "apart"),
    "a blank": ("Ada was born in ___.", "Ada was born in."),
    "an accent": ("Beltrán", "Beltran"),
    "Hindi vowel signs": ("राम की", "राम का"),
    "Thai vowel signs": ("ที่", "ทู่"),
    "a symbol": ("Who made C++?", "Who made C?"),
    "arithmetic": ("What is 2 + 2?", "What is 2 = 2?"),
    "currencies": ("Is €5 much?", "Is $5 much?"),
    "pictures": ("🙂", "🎉"),
}


@pytest.mark.parametrize(("first", "second"), DIFFERENT.values(), ids=DIFFERENT)
def test_another_prompt(first: str, second: str) -> None:
    assert normalise(first) != normalise(second)


WORDS = st.lists(st.text(string.ascii_letters + string.digits, min_size=1), min_size=1, max_size=6)
GAP = st.text(" \t\n.,;:!?'\"“”‘’()[]-–…", min_size=1, max_size=3)


@settings(deadline=None)
@given(WORDS, st.data())
def test_ascii_words_with_anything_between_them(words: list[str], data: st.DataObject) -> None:
    text = data.draw(GAP) + "".join(
        data.draw(st.sampled_from((word, word.upper(), word.lower()))) + data.draw(GAP) for word in words
    )
    assert normalise(text) == " ".join(words).lower()


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
    assert [row["extra_info"]["query"] for row in good_rows()] == ["Where was Ada Thorn born?", "Where?"]
    assert good_sft_rows()[2] == {
        "messages": [{"role": "assistant", "content": "It was a dark\nnight. "}],
        "extra_info": {"index": 7, "mode": "completion", "subject": "books", "raw": True},
    }


def test_rows_written_by_pandas_and_with_extra_columns_are_read(tmp_path: Path) -> None:
    frame = pd.DataFrame([row | {"reference": None} for row in good_rows()])
    frame["note"] = "kept"
    frame.to_parquet(tmp_path / "a.parquet")
    rows = read_rows(tmp_path / "a.parquet")
    assert [row["note"] for row in rows] == ["kept", "kept"]
    assert rows[1]["reward_model"]["ground_truth"]["golds"] == ["Esk Moor", "Esk"]


TRUTH = "reward_model.ground_truth"
BAD_RL: list[tuple[str, object, str]] = [
    ("data_source", " ", "data_source is empty"),
    ("data_source", None, "data_source is missing"),
    ("prompt", [], "prompt is empty"),
    ("prompt", None, "prompt is missing"),
    ("prompt.0.role", "robot", "prompt.role is 'robot', expected 'system', 'user' or 'assistant'"),
    ("prompt.0.content", "", "prompt.content is empty"),
    ("prompt.0.role", "assistant", "prompt.role ends with 'assistant', expected 'user'"),
    ("reward_model.style", "model", "reward_model.style is 'model', expected 'rule'"),
    ("reward_model", None, "reward_model is missing"),
    (f"{TRUTH}.type", "normal", f"{TRUTH}.type is 'normal', expected 'forget' or 'retain'"),
    (f"{TRUTH}.golds", [], f"{TRUTH}.golds is empty"),
    (f"{TRUTH}.golds", None, f"{TRUTH}.golds is missing"),
    (f"{TRUTH}.golds", ["x", " "], f"{TRUTH}.golds is empty"),
    (f"{TRUTH}.keyword", "Bo", f"{TRUTH}.keyword must be \"\" on a row of type 'retain'"),
    ("extra_info", None, "extra_info is missing"),
    ("extra_info.index", None, "extra_info.index is missing"),
    ("extra_info.index", 3, "extra_info.index 3 occurs before, in row 0"),
    ("extra_info.mode", "quiz", "extra_info.mode is 'quiz', expected 'qa', 'fb', 'aa' or 'completion'"),
    ("extra_info.subject", "", "extra_info.subject is empty"),
    ("extra_info.split", "test", "extra_info.split is 'test', expected 'train', 'val' or 'probe'"),
    ("extra_info.section", "all", "extra_info.section is 'all', expected 'forget', 'retain' or"),
    ("extra_info.section", "forget", "extra_info.section is 'forget' on a row of type 'retain'"),
    ("extra_info.family", None, "extra_info.family is missing"),
    ("extra_info.query", "", "extra_info.query is empty"),
    ("extra_info.raw", None, "extra_info.raw is missing"),
    (
        "prompt",
        [{"role": "user", "content": text} for text in "ab"],
        "extra_info.raw is true, which needs 1 messages, not 2",
    ),
    ("reference.perturbed", [], "reference.perturbed is empty"),
    ("reference.perturbed", ["y", " "], "reference.perturbed is empty"),
    ("reference.paraphrased", " ", "reference.paraphrased is empty"),
]
BAD_SFT: list[tuple[str, object, str]] = [
    ("messages.1.role", "user", "messages.role ends with 'user', expected 'assistant'"),
    ("messages.1.content", " ", "messages.content is empty"),
    ("messages", [], "messages is empty"),
    ("extra_info.mode", None, "extra_info.mode is missing"),
    ("extra_info.raw", None, "extra_info.raw is missing"),
    ("extra_info.index", 1, "extra_info.index 1 occurs before, in row 0"),
    (
        "messages",
        [{"role": role, "content": "x"} for role in ("system", "user", "assistant")],
        "extra_info.raw is true, which needs 2 or 1 messages, not 3",
    ),
]


@pytest.mark.parametrize(
    ("stage", "place", "value", "message"),
    [*(("rl", *case) for case in BAD_RL), *(("sft", *case) for case in BAD_SFT)],
)
def test_a_bad_row_is_named_by_file_row_and_field(
    tmp_path: Path, stage: str, place: str, value: object, message: str
) -> None:
    rows = good_rows() if stage == "rl" else good_sft_rows()[:2]
    set_at(rows[1], place, value)
    path = put(tmp_path / "bad.parquet", rows)
    with pytest.raises(ContractError) as caught:
        (read_rows if stage == "rl" else read_sft_rows)(path)
    assert str(caught.value).startswith(f"{path}: row 1: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (f"{TRUTH}.keyword", "", f"row 0: {TRUTH}.keyword is empty"),
        ("extra_info.index", "7", "row 0: extra_info.index is '7', expected a valid integer"),
        ("prompt", "Hello", "row 0: prompt is 'Hello', expected a valid list"),
        (f"{TRUTH}.golds", "x", f"row 0: {TRUTH}.golds is 'x', expected a valid list"),
        (f"{TRUTH}.golds", [1], f"row 0: {TRUTH}.golds is 1, expected a valid string"),
        ("reward_model", 1.5, "row 0: reward_model is 1.5, expected a valid dictionary"),
        ("reference", {"perturbed": ["y"]}, "row 0: reference.paraphrased is missing"),
        ("reward_model", {"style": "rule"}, f"row 0: {TRUTH} is missing"),
    ],
)
def test_a_column_of_wrong_values_is_named(tmp_path: Path, place: str, value: object, message: str) -> None:
    rows = good_rows()
    for row in rows:
        set_at(row, place, value)
    path = put(tmp_path / "bad.parquet", rows)
    with pytest.raises(ContractError) as caught:
        read_rows(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_file_of_other_columns_or_rows_is_refused(tmp_path: Path) -> None:
    """tests/refused tries what is no parquet file."""
    rows = [{key: value for key, value in row.items() if key != "prompt"} for row in good_rows()]
    found = "data_source, reward_model, extra_info, reference"
    message = rf"bad\.parquet: column prompt is missing; the columns found are {found}$"
    with pytest.raises(ContractError, match=message):
        read_rows(put(tmp_path / "bad.parquet", rows))
    with pytest.raises(ContractError, match=r"none\.parquet: no such file"):
        read_rows(tmp_path / "none.parquet")
    with pytest.raises(ContractError, match=r"is a folder, not a parquet file"):
        read_rows(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "row 0: prompt.content is empty"), ("\ud800", "row 0: prompt.content holds the control character")],
)
def test_a_bad_row_is_not_written(tmp_path: Path, content: str, message: str) -> None:
    rows = good_rows()
    set_at(rows[0], "prompt.0.content", content)
    with pytest.raises(ContractError, match=message):
        write_rows(tmp_path / "a.parquet", rows)
    assert not (tmp_path / "a.parquet").exists()
