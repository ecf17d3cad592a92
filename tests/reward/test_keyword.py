from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.keyword import contains_keyword


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
    ],
)
def test_case_counts_and_code_points_do_not(text: str, keyword: str, expected: bool) -> None:
    assert contains_keyword(text, keyword) is expected


@given(before=st.text(), keyword=st.text(min_size=1), after=st.text())
def test_keyword_is_found_wherever_it_stands(before: str, keyword: str, after: str) -> None:
    assert contains_keyword(before + keyword + after, keyword)
