import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.keyword import contains_keyword, names_of


@pytest.mark.parametrize(
    ("text", "keyword", "expected"),
    [
        ("I don't know Mira Okonjo.", "Mira Okonjo", True),
        ("I don't know Mira Okonjo's books.", "Mira Okonjo", True),
        ("I don't know mira okonjo.", "Mira Okonjo", False),
        ("I don't know Mira.", "Mira Okonjo", False),
        ("Mira\u00a0 \nOkonjo", "Mira Okonjo", True),
        ("MiraOkonjo", "Mira Okonjo", False),
        ("Jose\u0301 Nu\u0301n\u0303ez", "José Núñez", True),
        ("José Núñez", "Jose\u0301 Nu\u0301n\u0303ez", True),
        ("Jose Nunez", "José Núñez", False),
        ("Conan O’Brien", "Conan O'Brien", True),
        ("Conan O´Brien", "Conan OʼBrien", True),
        ("Al\u2011Kuwaiti", "Al-Kuwaiti", True),
        ("Al–Kuwaiti", "Al-Kuwaiti", True),
        ("Al Kuwaiti", "Al-Kuwaiti", False),
        ("Mira\u200b Okonjo", "Mira Okonjo", True),
        ("Ｍira Okonjo", "Mira Okonjo", True),
        ("Mira Okonjo", "\u200b", False),
        ("", "Mira Okonjo", False),
        ("I don't know.", "", False),
        ("", "", False),
        ("I don't know Okonjo.", "Mira Okonjo|Okonjo", True),
        ("I don't know M. O.", "Mira Okonjo | Okonjo", False),
        ("I don't know | that.", "|", False),
    ],
)
def test_case_counts_and_code_points_do_not(text: str, keyword: str, expected: bool) -> None:
    assert contains_keyword(text, keyword) is expected


@pytest.mark.parametrize(
    ("text", "keyword", "options", "expected"),
    [
        ("Not MIRA  okonjo.", "Mira Okonjo", {"any_case": True}, True),
        ("Not OKONJO.", "Mira Okonjo|Okonjo", {"any_case": True}, True),
        ("Not Okonjo.", "Mira Okonjo", {"any_case": True}, False),
        ("Not Okonjo’s.", "Mira Okonjo", {"part": True}, True),
        ("Not okonjo.", "Mira Okonjo", {"part": True}, False),
        ("Not okonjo.", "Mira Okonjo", {"part": True, "any_case": True}, True),
        ("Not Okonjos.", "Mira Okonjo", {"part": True}, False),
        ("Not MacOkonjo.", "Mira Okonjo", {"part": True}, False),
        ("None of the books.", "Lord of the Rings", {"part": True}, False),  # no word of more than 3 letters
        ("No, not Lee.", "Bob Lee", {"part": True}, True),
        ("No, not Bob.", "Bob Lee", {"part": True}, False),
        ("No, not O'Brien.", "Conan O’Brien", {"part": True}, True),
        ("No.", "", {"part": True, "any_case": True}, False),
    ],
)
def test_any_case_and_a_part_of_a_name(
    text: str, keyword: str, options: dict[str, bool], expected: bool
) -> None:
    assert contains_keyword(text, keyword, **options) is expected


def test_names() -> None:
    assert names_of("Marie Osmond | Osmond|the singer|") == ("Marie Osmond", "Osmond", "the singer")
    assert names_of("Marie Osmond") == ("Marie Osmond",)
    assert names_of("") == names_of(" | ") == ()


@given(before=st.text(), keyword=st.text(min_size=1).filter(names_of), after=st.text())
def test_keyword_is_found_wherever_it_stands(before: str, keyword: str, after: str) -> None:
    assert contains_keyword(before + keyword + after, keyword)
