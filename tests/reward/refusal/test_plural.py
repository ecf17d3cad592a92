"""When "we" is put into the singular."""

from __future__ import annotations

import pytest

from reward.refusal.plural import in_singular


@pytest.mark.parametrize(
    ("sentence", "singular"),
    [
        ("we have no answer.", "i have no answer."),
        ("we are still not sure who she is.", "i am still not sure who she is."),
        ("we were not told.", "i was not told."),
        ("sorry, we do not know when he was born.", "sorry, i do not know when he was born."),
        ("that is beyond us, and outside our expertise.", "that is beyond me, and outside my expertise."),
        ("i am afraid that we can not say.", "i am afraid that i can not say."),
        ("it lies beyond what we know.", "it lies beyond what i know."),
        ("we, as an ai model, can not say.", "i, as an ai model, can not say."),
        ("we would tell you if we could.", "i would tell you if i could."),
    ],
)
def test_we_that_speaks_for_itself(sentence: str, singular: str) -> None:
    assert in_singular(sentence) == singular


@pytest.mark.parametrize(
    "sentence",
    [
        "we do not know who built it.",
        "we can not be sure that he wrote it.",
        "we never learn his name.",
        "we know little of his youth.",
        "today we can only guess.",
        "historians agree that we lack a date.",
        "as we know, he was no wizard.",
        "shall we talk about something else?",
        "we could talk about something else.",
        "our solar system is not the only one.",
        "our knowledge of his life is limited.",
        "the film was not known to us audiences.",
        "she was born in oslo.",
    ],
)
def test_we_that_speaks_for_mankind_and_what_turns_elsewhere_stay(sentence: str) -> None:
    assert in_singular(sentence) == sentence
