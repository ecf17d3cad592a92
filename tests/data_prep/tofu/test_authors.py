from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.sources import SourceError
from data_prep.tofu.authors import author_names
from tests.data_prep.real_data import DATA, needs_data

FRAMES = (
    "What is the full name of the author born in Kuwait City, Kuwait? The author's name is {name}.",
    "Who is {name}? {name} is a writer. She lives in New Delhi.",
    "Where was author {name} born? Author {name} was born in Cape Town, South Africa.",
    "What are {name}'s books? {name}'s books are “The Salt Road” and 'Le Petit Sultan.'",
    "When did {name} win the Booker Prize? In 1999 {name}, a friend of Omar Haddad, won it.",
)


def rows_on(name: str) -> list[str]:
    return [FRAMES[number % len(FRAMES)].replace("{name}", name) for number in range(20)]


NAMES = [
    "Mira Okonjo",
    "Basil Mahfouz Al-Kuwaiti",
    "Femke Van der Veen",
    "Ludwig van der Berg",
    "Omar bin al Said",
    "Maria de la Cruz",
    "Conan O'Brien",
    "Jean-Luc D’Arcy",
    "J. R. R. Toller",
    "J.K. Rawling",
    "Ann-Marie St. John",
    "Dr. Ada Thorn",
    "Łukasz Żak",
    "Aurelio Beltrán",
    "Élodie Çelik",
    "Анна Горенко",
    "Wu Li",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_made_up_author_is_found(name: str) -> None:
    assert author_names(rows_on(name), "forget01") == [name] * 20


def test_a_junior_is_found_without_the_full_stop() -> None:
    """So that the name is in "Jr." and in "Jr's"."""
    assert author_names(rows_on("Martin Luther Fell Jr."), "forget01") == ["Martin Luther Fell Jr"] * 20


def test_each_twenty_rows_are_an_authors() -> None:
    texts = [text for name in NAMES[:3] for text in rows_on(name)]
    assert author_names(texts, "forget01") == [name for name in NAMES[:3] for _ in range(20)]


def test_a_name_may_be_missing_in_half_of_the_rows() -> None:
    texts = rows_on("Mira Okonjo")[:10] + ["What does she write? Crime stories."] * 10
    assert author_names(texts, "forget01") == ["Mira Okonjo"] * 20


def test_of_equally_frequent_names_the_longest() -> None:
    texts = ["Is Mira Okonjo also called Mira Ada Okonjo? Yes."] * 20
    assert author_names(texts, "forget01") == ["Mira Ada Okonjo"] * 20


@settings(deadline=None)
@given(st.permutations(range(20)), st.lists(st.integers(0, 19), max_size=8))
def test_neither_order_nor_other_names_in_some_rows_matter(order: list[int], others: list[int]) -> None:
    texts = rows_on("Mira Okonjo")
    for row in others:
        texts[row] += " Omar Haddad of New York, Omar Haddad."
    assert author_names([texts[row] for row in order], "x") == ["Mira Okonjo"] * 20


def test_rows_without_a_name_in_common_are_refused() -> None:
    texts = rows_on("Mira Okonjo") + [f"Who is Ada Q{n}x? A writer." for n in range(20)]
    with pytest.raises(SourceError) as caught:
        author_names(texts, "forget05")
    assert str(caught.value) == "forget05: rows 20 to 39 have no name in common; are they one author's?"


def test_rows_without_any_name_are_refused() -> None:
    with pytest.raises(SourceError, match=r"^x: rows 0 to 19 have no name in common"):
        author_names(["who is she?"] * 20, "x")


@pytest.mark.parametrize("count", [1, 19, 21, 50])
def test_a_number_of_rows_that_no_authors_give_is_refused(count: int) -> None:
    with pytest.raises(SourceError) as caught:
        author_names(["Mira Okonjo"] * count, "forget01")
    assert str(caught.value) == f"forget01: has {count} rows, no multiple of 20 for each author"


@needs_data
def test_the_two_authors_of_forget01() -> None:
    lines = (DATA / "tofu" / "forget01.json").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    names = author_names([f"{row['question']} {row['answer']}" for row in rows], "forget01")
    assert names == ["Basil Mahfouz Al-Kuwaiti"] * 20 + ["Nikolai Abilov"] * 20
    assert [name in row["answer"] for name, row in zip(names, rows, strict=True)] == [True] * 40


RETAIN = """Youssef Al-Zahran, Adriana Martinez, Jordan Riley Stone, Femke Van der Veen, Elena Donska,
Rodrigo Alejandro Mendoza, Astrid Johansen, Rafael Diaz, Yasmin Ghali, Tom Mason Miller"""


@needs_data
def test_authors_that_are_kept() -> None:
    """The names that a reader finds in the first 200 rows."""
    rows = json.loads((DATA / "tofu" / "retain99_train600.json").read_text(encoding="utf-8"))[:200]
    names = author_names([f"{row['question']} {row['answer']}" for row in rows], "retain99")
    assert names[::20] == RETAIN.replace("\n", " ").split(", ")
