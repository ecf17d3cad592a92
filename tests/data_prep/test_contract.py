"""The rows that all rooms exchange, and which prompts are the same; tests/refused tries damaged files."""

import unicodedata
from pathlib import Path
from typing import Literal

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.contract import normalise, read_rows, read_sft_rows, text_row, write_rows, write_sft_rows
from tests.refused.rows import changed, rl, sft

SAME = {
    "case and punctuation": ("WHERE, was ada born?!", "where was Ada born"),
    "white space": ("  Where was\tAda\nborn\u00a0", "Where was Ada born"),
    "quotes": ("Who wrote “Ada’s books”?", "Who wrote `Ada's books`?"),
    "length of a blank": ("Ada was born in _____.", "Ada was born in ___."),
    "soft hyphen": ("Tarn\u00adwick", "Tarnwick"),
    "hyphens": ("Who is **Jean-Luc** - the *poet*?", "Who is Jean Luc, the poet?"),
    "a span of years": ("Where was Ada in 1914–1918?", "Where was Ada in 1914 - 1918?"),
    "a number of a name": ("What is COVID-19?", "What is COVID 19?"),
}
DIFFERENT = {
    "another word": ("Where was Ada born?", "When was Ada born?"),
    "two words or one": ("a part", "apart"),
    "a blank": ("Ada was born in ___.", "Ada was born in."),
    "an accent": ("Beltrán", "Beltran"),
    "Hindi vowel signs": ("राम की", "राम का"),
    "a symbol": ("Who made C++?", "Who made C?"),
    "a sign of two numbers": ("What is 3*4?", "What is 3/4?"),
    "minus": ("What is 3-4?", "What is 3 4?"),
    "a negative number": ("What is -5 squared?", "What is 5 squared?"),
    "a percentage": ("What is 10% of 50?", "What is 10 of 50?"),
    "a sign alone": ("What does * mean in a regex?", "What does . mean in a regex?"),
    "a sharp": ("Who made C#?", "Who made C?"),
}


@pytest.mark.parametrize(("pairs", "same"), [(SAME, True), (DIFFERENT, False)], ids=["same", "different"])
def test_which_prompts_are_the_same(pairs: dict[str, tuple[str, str]], same: bool) -> None:
    found = {name: normalise(first) == normalise(second) for name, (first, second) in pairs.items()}
    assert found == dict.fromkeys(pairs, same)


@settings(deadline=None)
@given(st.text(), st.sampled_from(("NFC", "NFD", "NFKC", "NFKD")))
def test_unicode_forms_of_a_text_are_one(text: str, form: Literal["NFC", "NFD", "NFKC", "NFKD"]) -> None:
    assert normalise(unicodedata.normalize(form, text)) == normalise(text)


TEXT, TEXT_INFO = "It was a dark\nnight. ", {"mode": "completion", "subject": "books"}


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    """With the answers that probes are compared by, which a row may lack; a text is one raw message."""
    rows, texts = rl(count=3, raw=[1]), [*sft(count=2), text_row(TEXT, {"index": 7, **TEXT_INFO})]
    rows[0]["reference"] = {"paraphrased": "In Esk.", "perturbed": ["Fell", "Moor"]}
    rows[1]["reference"] = {"paraphrased": None, "perturbed": ["Fell"]}
    rows[2]["reference"] = None
    write_rows(tmp_path / "a.parquet", rows)
    write_sft_rows(tmp_path / "b.parquet", texts)
    assert read_rows(tmp_path / "a.parquet") == rows
    assert read_sft_rows(str(tmp_path / "b.parquet")) == texts
    assert texts[2] == {
        "messages": [{"role": "assistant", "content": TEXT}],
        "extra_info": {"index": 7, "raw": True, **TEXT_INFO},
    }
    # Pandas writes such rows too, and further columns are kept.
    noted = pd.DataFrame([row | {"reference": None, "note": "kept"} for row in rows])
    noted.to_parquet(tmp_path / "c.parquet")
    found = read_rows(tmp_path / "c.parquet")
    assert [row["note"] for row in found] == ["kept"] * 3
    assert found[1]["reward_model"] == rows[1]["reward_model"]


@pytest.mark.parametrize(
    ("content", "message"), [("", "is empty"), ("\ud800", "holds the control character")]
)
def test_a_bad_row_is_not_written(tmp_path: Path, content: str, message: str) -> None:
    rows = changed(rl(), 0, "prompt", 0, "content", value=content)
    with pytest.raises(ValueError, match=f"row 0: prompt.content {message}"):
        write_rows(tmp_path / "a.parquet", rows)
    assert not (tmp_path / "a.parquet").exists()
