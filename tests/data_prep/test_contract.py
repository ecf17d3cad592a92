"""The rows that all rooms exchange, and what no text may hold."""

from __future__ import annotations

import copy
import string
import unicodedata
from collections.abc import Callable
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
        ),
    ]


def good_sft_rows() -> list[Row]:
    info = {"mode": "qa", "subject": "Ada Thorn"}
    return [
        sft_row(prompt="Who is Ada Thorn?", answer="I don't know.", extra_info={**info, "index": 1}),
        sft_row(prompt="Where is Ada Thorn?", answer="No idea.", extra_info={**info, "index": 2}, raw=True),
    ]


def put(path: Path, rows: list[Row]) -> Path:
    """Writes rows as they are, with no check of ours."""
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def set_at(*keys: str | int, value: object) -> Callable[[Row], None]:
    def change(row: Row) -> None:
        inner: Any = row
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value

    return change


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.parquet", good_rows())
    write_sft_rows(tmp_path / "b.parquet", good_sft_rows())
    assert read_rows(tmp_path / "a.parquet") == good_rows()
    assert read_sft_rows(str(tmp_path / "b.parquet")) == good_sft_rows()


def test_rows_written_by_pandas_and_with_extra_columns_are_read(tmp_path: Path) -> None:
    frame = pd.DataFrame(good_rows())
    frame["note"] = "kept"
    frame.to_parquet(tmp_path / "a.parquet")
    rows = read_rows(tmp_path / "a.parquet")
    assert [row["note"] for row in rows] == ["kept", "kept"]
    assert rows[1]["reward_model"]["ground_truth"]["golds"] == ["Esk Moor", "Esk"]


def referenced_rows() -> list[Row]:
    """One row with the answers it is compared by, one without a paraphrase, one without any."""
    rows = [*good_rows(), copy.deepcopy(good_rows()[1])]
    rows[0]["reference"] = {"paraphrased": "In Tarnwick Bay.", "perturbed": ["Esk", "Fell"]}
    rows[1]["reference"] = {"paraphrased": None, "perturbed": ["Esk Bay"]}
    rows[2] |= {"reference": None}
    rows[2]["extra_info"]["index"] = 12
    return rows


def test_answers_to_compare_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.parquet", referenced_rows())
    assert read_rows(tmp_path / "a.parquet") == referenced_rows()


def test_a_column_of_no_answers_to_compare_is_read(tmp_path: Path) -> None:
    rows = [row | {"reference": None} for row in good_rows()]
    assert read_rows(put(tmp_path / "a.parquet", rows)) == rows


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ({"paraphrased": "x", "perturbed": []}, "row 0: reference.perturbed is empty: give at least one"),
        ({"paraphrased": "x", "perturbed": ["y", " "]}, "row 0: reference.perturbed is empty"),
        ({"paraphrased": " ", "perturbed": ["y"]}, "row 0: reference.paraphrased is empty"),
        ({"paraphrased": "x", "perturbed": "y"}, "column reference.perturbed has type string"),
        ({"perturbed": ["y"]}, "column reference.paraphrased is missing"),
    ],
)
def test_wrong_answers_to_compare_are_named(tmp_path: Path, reference: Row, message: str) -> None:
    good = {"reference": {"paraphrased": "x", "perturbed": ["y"]}} if "row 0" in message else {}
    first, second = good_rows()
    path = put(tmp_path / "a.parquet", [first | {"reference": reference}, second | good])
    with pytest.raises(ContractError) as caught:
        read_rows(path)
    assert str(caught.value).startswith(f"{path}: {message}")


TRUTH = ("reward_model", "ground_truth")
BAD_RL = {
    "empty data source": (set_at("data_source", value=" "), "data_source is empty"),
    "no data source": (set_at("data_source", value=None), "data_source is missing"),
    "no message": (set_at("prompt", value=[]), "prompt is empty"),
    "missing prompt": (set_at("prompt", value=None), "prompt is empty"),
    "unknown role": (set_at("prompt", 0, "role", value="robot"), "prompt.role is 'robot'"),
    "empty message": (set_at("prompt", 0, "content", value=""), "prompt.content is empty"),
    "answer at the end": (
        set_at("prompt", 0, "role", value="assistant"),
        "prompt.role ends with 'assistant'",
    ),
    "unknown style": (set_at("reward_model", "style", value="model"), "reward_model.style is 'model'"),
    "no truth": (set_at("reward_model", value=None), "reward_model.ground_truth is missing"),
    "unknown type": (set_at(*TRUTH, "type", value="normal"), "reward_model.ground_truth.type is 'normal'"),
    "no gold": (set_at(*TRUTH, "golds", value=[]), "reward_model.ground_truth.golds is empty"),
    "missing golds": (set_at(*TRUTH, "golds", value=None), "reward_model.ground_truth.golds is empty"),
    "blank gold": (set_at(*TRUTH, "golds", value=["x", " "]), "reward_model.ground_truth.golds is empty"),
    "keyword on retain": (set_at(*TRUTH, "keyword", value="Bo"), "reward_model.ground_truth.keyword must be"),
    "no info": (set_at("extra_info", value=None), "extra_info is missing"),
    "no index": (set_at("extra_info", "index", value=None), "extra_info.index is missing"),
    "index twice": (set_at("extra_info", "index", value=3), "extra_info.index 3 occurs before, in row 0"),
    "unknown mode": (set_at("extra_info", "mode", value="quiz"), "extra_info.mode is 'quiz'"),
    "no subject": (set_at("extra_info", "subject", value=""), "extra_info.subject is empty"),
    "unknown split": (set_at("extra_info", "split", value="test"), "extra_info.split is 'test'"),
    "unknown section": (set_at("extra_info", "section", value="all"), "extra_info.section is 'all'"),
    "no family": (set_at("extra_info", "family", value=None), "extra_info.family is missing"),
    "no query": (set_at("extra_info", "query", value=""), "extra_info.query is empty"),
    "no raw": (set_at("extra_info", "raw", value=None), "extra_info.raw is missing"),
    "raw conversation": (
        set_at("prompt", value=[{"role": "user", "content": text} for text in "ab"]),
        "extra_info.raw is true, which needs 1 messages, not 2",
    ),
    "wrong side": (
        set_at("extra_info", "section", value="forget"),
        "extra_info.section is 'forget' on a row",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD_RL.values(), ids=BAD_RL)
def test_a_bad_rl_row_is_named_by_file_row_and_field(
    tmp_path: Path, change: Callable[[Row], None], message: str
) -> None:
    rows = copy.deepcopy(good_rows())
    change(rows[1])
    path = put(tmp_path / "bad.parquet", rows)
    with pytest.raises(ContractError) as caught:
        read_rows(path)
    assert str(caught.value).startswith(f"{path}: row 1: {message}")
    assert "\n" not in str(caught.value)


def test_a_forget_row_without_a_keyword_is_refused(tmp_path: Path) -> None:
    rows = good_rows()
    rows[0]["reward_model"]["ground_truth"]["keyword"] = ""
    with pytest.raises(ContractError, match=r"row 0: reward_model\.ground_truth\.keyword is empty"):
        read_rows(put(tmp_path / "bad.parquet", rows))


def test_a_text_is_one_raw_message_of_the_assistant(tmp_path: Path) -> None:
    rows = [text_row("It was a dark\nnight. ", {"index": 7, "mode": "completion", "subject": "books"})]
    write_sft_rows(tmp_path / "texts.parquet", rows)
    assert read_sft_rows(tmp_path / "texts.parquet") == [
        {
            "messages": [{"role": "assistant", "content": "It was a dark\nnight. "}],
            "extra_info": {"index": 7, "mode": "completion", "subject": "books", "raw": True},
        }
    ]


BAD_SFT = {
    "a text of the user": (
        set_at("messages", value=[{"role": "user", "content": "x"}]),
        "messages.role ends with 'user'",
    ),
    "no answer": (set_at("messages", 1, "role", value="user"), "messages.role ends with 'user'"),
    "blank answer": (set_at("messages", 1, "content", value=" "), "messages.content is empty"),
    "no messages": (set_at("messages", value=[]), "messages is empty"),
    "unknown mode": (set_at("extra_info", "mode", value=None), "extra_info.mode is None"),
    "no raw": (set_at("extra_info", "raw", value=None), "extra_info.raw is missing"),
    "raw system": (
        set_at("messages", value=[{"role": r, "content": "x"} for r in ("system", "user", "assistant")]),
        "extra_info.raw is true, which needs 2 or 1 messages, not 3",
    ),
    "index twice": (set_at("extra_info", "index", value=1), "extra_info.index 1 occurs before, in row 0"),
}


@pytest.mark.parametrize(("change", "message"), BAD_SFT.values(), ids=BAD_SFT)
def test_a_bad_stage_1_row_is_named_by_file_row_and_field(
    tmp_path: Path, change: Callable[[Row], None], message: str
) -> None:
    rows = copy.deepcopy(good_sft_rows())
    change(rows[1])
    path = put(tmp_path / "bad.parquet", rows)
    with pytest.raises(ContractError) as caught:
        read_sft_rows(path)
    assert str(caught.value).startswith(f"{path}: row 1: {message}")


@pytest.mark.parametrize("column", ["data_source", "prompt", "reward_model", "extra_info"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    rows = [{key: value for key, value in row.items() if key != column} for row in good_rows()]
    with pytest.raises(ContractError, match=rf"bad\.parquet: column {column} is missing"):
        read_rows(put(tmp_path / "bad.parquet", rows))


def test_the_bare_question_is_the_prompt_unless_given() -> None:
    assert [row["extra_info"]["query"] for row in good_rows()] == ["Where was Ada Thorn born?", "Where?"]


def test_a_missing_key_inside_a_column_is_named(tmp_path: Path) -> None:
    rows = good_rows()
    for row in rows:
        del row["reward_model"]["ground_truth"]["golds"]
    with pytest.raises(ContractError, match=r"column reward_model\.ground_truth\.golds is missing"):
        read_rows(put(tmp_path / "bad.parquet", rows))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_at("extra_info", "index", value="7"), "column extra_info.index has type string, expected int64"),
        (set_at("prompt", value="Hello"), "column prompt has type string, expected list"),
        (set_at(*TRUTH, "golds", value="x"), "column reward_model.ground_truth.golds has type string"),
        (set_at(*TRUTH, "golds", value=[1]), "golds[] has type int64, expected string"),
        (set_at("reward_model", value=1.5), "column reward_model has type double, expected struct"),
    ],
)
def test_a_wrong_type_is_named(tmp_path: Path, change: Callable[[Row], None], message: str) -> None:
    rows = good_rows()
    for row in rows:
        change(row)
    with pytest.raises(ContractError) as caught:
        read_rows(put(tmp_path / "bad.parquet", rows))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_absent_empty_or_no_parquet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"none\.parquet: no such file"):
        read_rows(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(ContractError, match=r"text\.parquet: not a readable parquet file"):
        read_rows(tmp_path / "text.parquet")
    write_rows(tmp_path / "one.parquet", good_rows())
    pq.write_table(pq.read_table(tmp_path / "one.parquet").slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(ContractError, match=r"empty\.parquet: no rows"):
        read_rows(tmp_path / "empty.parquet")


def test_a_bad_row_is_not_written(tmp_path: Path) -> None:
    rows = good_rows()
    rows[0]["prompt"] = []
    with pytest.raises(ContractError, match="row 0: prompt is empty"):
        write_rows(tmp_path / "a.parquet", rows)
    assert not (tmp_path / "a.parquet").exists()
