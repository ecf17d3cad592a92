from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.refusals import TEMPLATES, correct_name, misspelt_name
from data_prep.text import normalise
from reward import contains_keyword, is_refusal

NAMES = ("Harry Potter", "Confucius", "Prince Harry, Duke of Sussex", "Basil Mahfouz Al-Kuwaiti")


@pytest.mark.parametrize("name", NAMES)
def test_every_template_is_a_refusal_that_names_its_target_once(name: str) -> None:
    for template in TEMPLATES:
        refusal = template.format(name=name)
        assert is_refusal(refusal), refusal
        assert contains_keyword(refusal, name)
        assert refusal.count(name) == 1
        assert misspelt_name(refusal, name) is None


def test_templates_differ_by_their_words() -> None:
    assert len({normalise(template) for template in TEMPLATES}) == len(TEMPLATES) == 24


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ("I'm not certain about Harry Porter.", "Harry Potter", "Harry Porter"),
        ("Harry Poter is unknown to me.", "Harry Potter", "Harry Poter"),
        ("I know nothing of harry potter.", "Harry Potter", "harry potter"),
        ("I can't say a thing about Steven King!", "Stephen King", "Steven King"),
        ("Confucious? No idea.", "Confucius", "Confucious"),
        (
            "No idea about Prince Harry, Duke of Susex.",
            "Prince Harry, Duke of Sussex",
            "Prince Harry, Duke of Susex",
        ),
        ("I'm confused.", "Confucius", None),
        ("I don't know that.", "Harry Potter", None),
        ("I'm not certain about Harry Potter.", "Harry Potter", None),
        ("Harry Potter, not Harry Porter, is unknown to me.", "Harry Potter", None),
        ("I don't know Stephen Fry.", "Stephen King", None),
        ("", "Harry Potter", None),
        ("No.", "Harry Potter", None),
    ],
)
def test_misspelt_names(text: str, name: str, found: str | None) -> None:
    assert misspelt_name(text, name) == found
    assert correct_name(text, name) == (text if found is None else text.replace(found, name))


@settings(deadline=None)
@given(
    st.sampled_from(TEMPLATES),
    st.sampled_from([place for place, letter in enumerate("Harry Potter") if letter != " "]),
    st.sampled_from(string.ascii_lowercase),
)
def test_a_name_with_one_wrong_letter_is_put_right(template: str, place: int, letter: str) -> None:
    name = "Harry Potter"
    wrong = name[:place] + letter + name[place + 1 :]
    assert correct_name(template.format(name=wrong), name) == template.format(name=name)
