from __future__ import annotations

import pytest

from recipe.rerule.evaluation.attacks.rows import TrainingRow, find_leaks


def row(prompt: str, answer: str, number: int = 0) -> TrainingRow:
    return TrainingRow(f"retain {number}", [{"role": "user", "content": prompt}], answer)


HOLDS = [
    ("The Silent Sea", "She wrote The Silent Sea."),
    ("The Silent Sea", "she wrote SILENT   SEA"),
    ("Silent Sea", "the silent-sea, a novel"),
    ("Zoë Müller", "Her name is Zoe Muller."),
    ("1,250 copies", "They sold 1250 copies"),
    ("1250", "They sold 1,250"),
    ("O'Neil", "It was O’Neil's"),
    ("May 5, 1961", "Born on May 5 1961."),
    ("北京", "他住在北京。"),
    ("ﬁne arts", "She studied Fine Arts"),
    ("The", "the band The The"),
    ("Straße 4", "STRASSE 4"),
    ("4", "She has 4 children"),
]
HOLDS_NOT = [
    ("art", "She started with parties"),
    ("Silent Sea", "silent was the sea"),
    ("1961", "in 19615"),
    ("4", "She has 40 children"),
    ("12", "1,2"),
    ("Ada Thorn", "Ada. Her sister is Thora"),
    ("北京", "东京"),
    ("New York", "york new"),
]


@pytest.mark.parametrize(("gold", "text"), HOLDS)
def test_rows_that_hold_a_gold(gold: str, text: str) -> None:
    assert find_leaks([row("Tell me.", text)], [gold]) == {"retain 0": gold}
    assert find_leaks([row(f"Is it so? {text}", "Yes.")], [gold]) == {"retain 0": gold}


@pytest.mark.parametrize(("gold", "text"), HOLDS_NOT)
def test_rows_that_do_not(gold: str, text: str) -> None:
    assert find_leaks([row("Tell me.", text)], [gold]) == {}


def test_a_gold_is_not_put_together_of_the_end_of_one_word_and_the_next_line() -> None:
    assert find_leaks([row("the old", "sea")], ["d sea"]) == {}


def test_a_gold_that_cannot_be_looked_for_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the scored answer '\?!' has no letters or digits"):
        find_leaks([row("Who?", "Nobody")], ["?!"])
