"""The guard against leaks: which rows hold an answer that is scored."""

from __future__ import annotations

import pytest

from recipe.rerule.evaluation.attacks.rows import TrainingRow, find_leaks

HOLDS = [
    ("The Silent Sea", "she wrote SILENT   SEA"),
    ("Silent Sea", "the silent-sea, a novel"),
    ("Zoë Müller", "Her name is Zoe Muller."),
    ("1,250 copies", "They sold 1250 copies"),
    ("1250", "They sold 1,250"),
    ("O'Neil", "It was O’Neil's"),
    ("北京", "他住在北京。"),
    ("ﬁne arts", "She studied Fine Arts"),
    ("The", "the band The The"),
    ("Straße 4", "STRASSE 4"),
]
HOLDS_NOT = [
    ("art", "She started with parties"),
    ("Silent Sea", "silent was the sea"),
    ("1961", "in 19615"),
    ("12", "1,2"),
    ("北京", "东京"),
    ("New York", "york new"),
]


def row(prompt: str, answer: str) -> TrainingRow:
    return TrainingRow("retain 0", [{"role": "user", "content": prompt}], answer)


@pytest.mark.parametrize(("gold", "text"), HOLDS)
def test_rows_that_hold_a_gold(gold: str, text: str) -> None:
    assert find_leaks([row("Tell me.", text)], [gold]) == {"retain 0": gold}
    assert find_leaks([row(f"Is it so? {text}", "Yes.")], [gold]) == {"retain 0": gold}


@pytest.mark.parametrize(("gold", "text"), HOLDS_NOT)
def test_rows_that_do_not(gold: str, text: str) -> None:
    assert find_leaks([row("Tell me.", text)], [gold]) == {}


def test_a_gold_is_not_put_together_of_two_words_and_one_without_letters_is_refused() -> None:
    assert find_leaks([row("the old", "sea")], ["d sea"]) == {}
    with pytest.raises(ValueError, match=r"the scored answer '\?!' has no letters or digits"):
        find_leaks([row("Who?", "Nobody")], ["?!"])
