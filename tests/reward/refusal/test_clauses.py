"""The clauses of a sentence, by hand."""

import pytest

from reward.refusal.clauses import clauses

CASES = {
    "i do not know": ["i do not know"],
    # punctuation and conjunctions
    "i am sorry, but i do not know": ["i am sorry", "but i do not know"],
    "she left because he could not stay": ["she left", "because he could not stay"],
    # another subject
    "i do not know where she was born": ["i do not know where", "she was born"],
    "i can not say who he is": ["i can not say who", "he is"],
    "the man who knew too much": ["the man", "who knew too much"],
    "someone who can help": ["someone who can help"],
    # what is asserted leaves its speaker
    "i know that he was not there": ["indeed he was not there"],
    "i think it was paris": ["perhaps it was paris"],
    "my records show that she was not there": ["perhaps she was not there"],
    "i do not think she sang": ["not she sang"],
    "i know nothing": ["i know nothing"],
    "i do not think i know that": ["i do not think i know that"],
    # qualifications and asides
    "to my knowledge she sang": ["she sang"],
    "no doubt she sang": ["she sang"],
    "i, as an ai, can not say": ["i can not say"],
    "in my records, nobody sang": ["in my records nobody sang"],
    # the words of a refusal, about something else
    "i can not tell a lie": ["i can not ~"],
    # what is left to the speaker
    "i am an ai, and can not say": ["i am an ai", "i and can not say"],
    "i know many, but she is not one of them": ["i know many", "but she is not one of what i know"],
    "he knew many, but she is not one of them": ["he knew many", "but she is not one of them"],
    "...": [],
}


@pytest.mark.parametrize(("sentence", "parts"), CASES.items())
def test_clauses(sentence: str, parts: list[str]) -> None:
    assert [part.text for part in clauses(sentence)] == parts


def test_what_parts_a_clause_from_the_one_before_is_kept() -> None:
    assert [part.joint for part in clauses("a, b; c but d")] == ["", ",", ";", ""]
