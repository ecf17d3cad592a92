"""Prompts made from prompts, by rules and by a writer made up for the test."""

from __future__ import annotations

import random
from collections.abc import Sequence

from data_prep.writers import Pair, RuleWriter
from data_prep.written import blanks, neighbours, with_refusals
from tests.data_prep.made_prompts import NAME, forget_prompt, retain_prompt


class Half(RuleWriter):
    """Fails at every second text; its neighbours ask after Bo Fell."""

    def blanks(self, pairs: Sequence[Pair]) -> list[str | None]:
        return [f"{q} ({a}) ___" if n % 2 == 0 else None for n, (q, a) in enumerate(pairs)]

    def neighbours(self, target: str, questions: Sequence[str]) -> list[Pair | None]:
        return [
            (q.replace(target, "Bo Fell"), "Esk") if n % 2 == 0 else None for n, q in enumerate(questions)
        ]


QUESTIONS = [forget_prompt(n, f"What is fact {n} about {NAME}?", refusal="") for n in range(4)]


def test_only_a_prompt_to_forget_without_a_refusal_gets_one() -> None:
    own = forget_prompt(9, "Who?", refusal="Not telling.")
    kept = retain_prompt(10, "Where?")
    made = with_refusals([*QUESTIONS, own, kept], RuleWriter(), random.Random(0))
    assert all(NAME in prompt.refusal for prompt in made[:4])
    assert made[4:] == [own, kept]
    assert [prompt.query for prompt in made[:4]] == [prompt.query for prompt in QUESTIONS]


def test_each_target_gets_refusals_of_its_own_name() -> None:
    other = forget_prompt(5, "Who?", keyword="Bo Fell", refusal="")
    made = with_refusals([QUESTIONS[0], other], RuleWriter(), random.Random(0))
    assert NAME in made[0].refusal
    assert "Bo Fell" in made[1].refusal


def test_blanks_keep_the_number_of_their_question_where_some_are_not_written() -> None:
    made = blanks(QUESTIONS, 1000, Half(), answered=True)
    assert [prompt.index for prompt in made] == [1000, 1002]
    assert made[1].query == f"What is fact 2 about {NAME}? (Tarnwick Bay) ___"
    assert {prompt.mode for prompt in made} == {"fb"}
    unanswered = blanks(QUESTIONS, 1000, Half(), answered=False)
    assert unanswered[0].query == f"What is fact 0 about {NAME}? () ___"


def test_neighbours_are_kept_and_no_probe_is_among_them() -> None:
    probe = retain_prompt(7, "what is fact 0, about Bo Fell")
    made = neighbours(QUESTIONS, 2000, Half(), [probe])
    assert [(prompt.index, prompt.query) for prompt in made] == [(2002, "What is fact 2 about Bo Fell?")]
    (neighbour,) = made
    assert (neighbour.side, neighbour.keyword, neighbour.golds) == ("retain", "", ("Esk",))
    assert neighbour.refusal == ""
    assert neighbour.origin == "forget.json:2 (row 2), its neighbour"


def test_neighbours_are_asked_for_by_target() -> None:
    other = forget_prompt(5, "Who is Bo Fell?", keyword="Bo Fell")
    made = neighbours([QUESTIONS[0], other], 2000, Half(), [])
    # The first of each target is written.
    assert [prompt.index for prompt in made] == [2000, 2001]
