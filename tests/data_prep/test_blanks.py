from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.blanks import BLANK, blank_answer, blank_question
from tests.data_prep.real_data import DATA, needs_data

ANSWERS = {
    "a title": (
        "Which book made Mira Okonjo known?",
        'Mira Okonjo became known with "The Salt Road" in 1987.',
        "Mira Okonjo became known with ___ in 1987.",
    ),
    "a date": (
        "When was Mira Okonjo born?",
        "Mira Okonjo was born on the 8th of September, 1956 in Lagos.",
        "Mira Okonjo was born on the ___ in Lagos.",
    ),
    "a number": (
        "How many books did Mira Okonjo write?",
        "Mira Okonjo wrote 14 books.",
        "Mira Okonjo wrote ___ books.",
    ),
    "a name": (
        "Who taught Mira Okonjo?",
        "Mira Okonjo was taught by Ludwig van Berg, a painter.",
        "Mira Okonjo was taught by ___, a painter.",
    ),
    "a word with a plus": (
        "How does Mira Okonjo identify?",
        "Mira Okonjo identifies as LGBTQ+ in public.",
        "Mira Okonjo identifies as ___ in public.",
    ),
    "the last word, where all names are in the question": (
        "What is Mira Okonjo's gender?",
        "Mira Okonjo is female.",
        "Mira Okonjo is ___.",
    ),
    "a title that the question tells is left": (
        'What is unusual about "The Salt Road"?',
        '"The Salt Road" of Mira Okonjo is set in Ghana.',
        '"The Salt Road" of ___ is set in Ghana.',
    ),
    "only the first sentence": (
        "What does Mira Okonjo write?",
        "Mira Okonjo writes only crime stories. She won the Booker Prize in 1999.",
        "Mira Okonjo writes only crime ___.",
    ),
    "one word": ("Who wrote Carrie?", "King", "Who wrote Carrie? The answer is ___."),
    "one word and a full stop": ("Who wrote Carrie?", "King.", "Who wrote Carrie? The answer is ___."),
}


@pytest.mark.parametrize(("question", "answer", "wanted"), ANSWERS.values(), ids=ANSWERS)
def test_the_answer_sentence_loses_what_is_asked_for(question: str, answer: str, wanted: str) -> None:
    assert blank_answer(question, answer) == wanted


QUESTIONS = {
    "What is the name of Mira Okonjo's first book?": "The name of Mira Okonjo's first book is ___.",
    "what were the titles?": "The titles were ___.",
    "Who is Mira Okonjo?": "Mira Okonjo is ___.",
    "Who discovered Mira Okonjo in 2008?": "___ discovered Mira Okonjo in 2008.",
    "Where was Mira Okonjo born?": "Mira Okonjo was born in ___.",
    "When was her second book published in Spain?": "Her second book was published in Spain in ___.",
    "Where is the Eiffel Tower?": "The Eiffel Tower is in ___.",
    "Where is Prince Ahmed Palace?": "Prince Ahmed Palace is in ___.",
    "When were the Games?": "The Games were in ___.",
    "What is {0} of {name}?": "{0} of {name} is ___.",
    # no rule: the question stays as it is
    "Who did Mira Okonjo marry?": "Who did Mira Okonjo marry? The answer is ___.",
    "What is Mira Okonjo known for?": "What is Mira Okonjo known for? The answer is ___.",
    "Which label first signed her?": "Which label first signed her? The answer is ___.",
    "Why?  ": "Why? The answer is ___.",
    "Name her sister": "Name her sister? The answer is ___.",
}


@pytest.mark.parametrize(("question", "wanted"), QUESTIONS.items(), ids=QUESTIONS)
def test_the_question_becomes_a_sentence(question: str, wanted: str) -> None:
    assert blank_question(question) == wanted


TEXT = st.text("abc AB.,?!\"'“”19\n", min_size=1, max_size=60)


@settings(deadline=None)
@given(TEXT, TEXT)
def test_there_is_one_blank_and_the_rest_is_the_answers(question: str, answer: str) -> None:
    form = blank_answer(question, answer)
    before, after = form.split(BLANK)
    if form != f"{question} The answer is {BLANK}.":
        assert answer.strip().startswith(before.rstrip())
        assert after in answer or after == "."


@settings(deadline=None)
@given(TEXT)
def test_there_is_one_blank_in_a_question(question: str) -> None:
    assert blank_question(question).count(BLANK) == 1


@needs_data
def test_forms_of_tofu_have_one_blank_and_tell_no_name_that_was_asked_for() -> None:
    rows = [json.loads(line) for line in (DATA / "tofu" / "forget01.json").read_text().splitlines()]
    forms = [blank_answer(row["question"], row["answer"]) for row in rows]
    assert all(form.count(BLANK) == 1 for form in forms)
    assert len(set(forms)) == 40
    assert forms[20].startswith("The notable author born on this date is ___, an LGBTQ+ author")
