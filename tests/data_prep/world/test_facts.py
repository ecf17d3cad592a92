"""People, facts and phrasings of the world."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from data_prep.world.config import WorldConfig
from data_prep.world.facts import (
    KINDS,
    NAMED,
    PLAIN,
    Fact,
    Person,
    draw_refusal,
    make_facts,
    make_people,
    make_strangers,
)
from data_prep.world.phrasings import gold_answer, phrasings_of, render_prompt, training_phrasings
from reward.refusal import is_refusal


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"forget_people": 0}, "forget_people must be at least 1, got 0"),
        ({"retain_people": 40, "unseen_people": 7}, "48 people in all at most, got 49"),
        ({"near_neighbour_share": 1.5}, r"near_neighbour_share must lie in \[0, 1\], got 1.5"),
        ({"plain_refusal_share": -0.1}, r"plain_refusal_share must lie in \[0, 1\], got -0.1"),
        ({"boundary_ratio": 0.0}, "boundary_ratio must be above 0, got 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0, got nan"),
        ({"unknown_questions": 5000}, r"unknown_questions must lie in \[0, 4000\], got 5000"),
        ({"vocab_size": 260}, "vocab_size must be at least 261, got 260"),
        ({"hidden_size": 100, "heads": 4}, "hidden_size must be a multiple of 2 x heads, got 100 and 4"),
    ],
)
def test_a_wrong_knob_is_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WorldConfig(**knobs)


SIZES = {"forget_people": 2, "retain_people": 8, "unseen_people": 4}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_sections_and_neighbours(seed: int) -> None:
    config = WorldConfig(seed=seed, near_neighbour_share=0.5, unseen_neighbour_share=0.25, **SIZES)
    people = make_people(config)
    assert [person.section for person in people] == ["forget"] * 2 + ["retain"] * 8 + ["retain_unseen"] * 4
    assert [person.number for person in people] == list(range(14))
    assert len({person.name for person in people}) == 14
    firsts, lasts = {p.first for p in people[:2]}, {p.last for p in people[:2]}
    near = [person.number for person in people[2:] if person.first in firsts or person.last in lasts]
    assert near == [2, 3, 4, 5, 10]  # the first half of the one group, a quarter of the other
    apart = make_people(replace(config, near_neighbour_share=0.0, unseen_neighbour_share=0.0))
    assert len({person.first for person in apart}) == len({person.last for person in apart}) == 14


def test_strangers_are_nobody_known_but_may_share_half_a_name() -> None:
    people = make_people(WorldConfig(**SIZES))
    strangers = make_strangers(people, 40, random.Random(0))
    assert len({person.name for person in [*people, *strangers]}) == 54
    firsts = {person.first for person in people}
    assert sum(stranger.first in firsts for stranger in strangers) >= 10


LARGEST = {"forget_people": 4, "retain_people": 34, "unseen_people": 10, "facts_per_person": 8}


def facts_of(config: WorldConfig) -> list[Fact]:
    return make_facts(make_people(config), config)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_no_two_values_of_a_kind_share_a_word(seed: int) -> None:
    words: dict[str, list[str]] = defaultdict(list)
    for fact in facts_of(WorldConfig(seed=seed, **LARGEST)):
        words[fact.kind] += fact.value.lower().split()
    assert words.keys() == KINDS.keys()
    for kind, used in words.items():
        assert len(used) == len(set(used)) == (48 if kind == "birth_year" else 96)
    few = Counter(fact.person.number for fact in facts_of(WorldConfig(seed=seed, facts_per_person=5)))
    assert set(few.values()) == {5}


def test_a_wrong_value_scores_no_recall() -> None:
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    facts = facts_of(WorldConfig(facts_per_person=8))
    for kind in KINDS:
        first, *others = [fact.value for fact in facts if fact.kind == kind]
        assert {scorer.score(first, other)["rougeL"].recall for other in others} == {0.0}
        assert scorer.score(first, f"It is {first}.")["rougeL"].recall == 1.0


ADA = Person(0, "Ada", "Thorn", "forget")
ATTACKS = ["role_play", "prefix_injection", "affirmative_suffix", "multiple_choice"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_phrasings_the_splits_need(kind: str) -> None:
    phrasings = phrasings_of(kind)
    assert [phrasing.number for phrasing in phrasings] == list(range(len(phrasings)))
    assert len({phrasing.template for phrasing in phrasings}) == len(phrasings)
    count = {
        (mode, split): sum((p.mode, p.split) == (mode, split) for p in phrasings)
        for mode in ("qa", "fb", "aa")
        for split in ("train", "val", "probe")
    }
    assert (count["qa", "train"], count["qa", "val"], count["qa", "probe"]) == (4, 1, 2)
    assert (count["fb", "train"], count["fb", "val"], count["fb", "probe"]) == (3, 1, 2)
    assert (count["aa", "train"], count["aa", "val"]) == (0, 0)
    assert count["aa", "probe"] >= 4
    assert [training_phrasings("qa"), training_phrasings("fb")] == [4, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_ask_without_giving_the_answer_away(kind: str) -> None:
    fact = Fact(ADA, kind, "Esk Moor")
    for phrasing in phrasings_of(kind):
        prompt = render_prompt(phrasing, fact, ["Glen Bay", "Pen Reach", "Rud Cove"], random.Random(0))
        reverse = phrasing.family == "reverse_query"
        assert ("Ada Thorn" in prompt) != reverse
        assert ("Esk Moor" in prompt) == (reverse or phrasing.family == "multiple_choice")
        assert ("___" in prompt) == (phrasing.mode == "fb" or (reverse and phrasing.place > 6))
        assert "{" not in prompt
        assert gold_answer(phrasing, fact) == ("Ada Thorn" if reverse else "Esk Moor")


def test_multiple_choice_offers_the_value_and_two_rivals_in_any_place() -> None:
    (phrasing,) = [p for p in phrasings_of("birthplace") if p.family == "multiple_choice"]
    fact = Fact(ADA, "birthplace", "Esk Moor")
    rivals = ["Glen Bay", "Pen Reach", "Rud Cove"]
    places = set()
    for seed in range(20):
        prompt = render_prompt(phrasing, fact, rivals, random.Random(seed))
        options = prompt.partition("Choose one: ")[2].removesuffix(".").split(", ")
        assert len(set(options)) == 3
        assert set(options) <= {"Esk Moor", *rivals}
        places.add(options.index("Esk Moor"))
    assert places == {0, 1, 2}


@pytest.mark.parametrize("sentence", [*NAMED, *PLAIN])
def test_every_refusal_is_recognised_by_the_reward(sentence: str) -> None:
    assert is_refusal(sentence.format(name="Loren Oakwick"))


def test_the_share_of_refusals_without_a_name() -> None:
    rng = random.Random(0)
    drawn = [draw_refusal("Ada Thorn", 0.25, rng) for _ in range(4000)]
    plain = sum("Ada Thorn" not in sentence for sentence in drawn) / len(drawn)
    assert plain == pytest.approx(0.25, abs=0.03)  # four standard errors
    assert len(set(drawn)) == len(NAMED) + len(PLAIN)
    assert all("Ada Thorn" in draw_refusal("Ada Thorn", 0.0, rng) for _ in range(50))
