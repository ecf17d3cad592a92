from __future__ import annotations

import string
import sys
import unicodedata
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.text import normalise

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


def test_letters_and_digits_of_all_scripts_count() -> None:
    letters = [
        character
        for character in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(character)[0] in "LN" and unicodedata.is_normalized("NFKC", character)
    ]
    assert len(letters) > 100_000
    assert [character for character in letters if not normalise(character)] == []
