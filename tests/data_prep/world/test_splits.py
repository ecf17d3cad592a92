from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.contract import Row, validate_rows, validate_sft_rows
from data_prep.world.config import WorldConfig
from data_prep.world.splits import World, make_world
from reward.refusal import is_refusal

SMALL = {"forget_people": 2, "retain_people": 5, "unseen_people": 3, "facts_per_person": 4}


def small_world(seed: int = 0) -> World:
    return make_world(WorldConfig(seed=seed, unknown_questions=30, retain_probes=60, val_rows=12, **SMALL))


def texts(rows: list[Row]) -> set[str]:
    return {row["prompt" if "prompt" in row else "messages"][0]["content"] for row in rows}


def subjects(rows: list[Row], section: str) -> set[str]:
    return {row["extra_info"]["subject"] for row in rows if row["extra_info"]["section"] == section}


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_splits_keep_apart_what_must_be_apart(seed: int) -> None:
    world = small_world(seed)
    rows = world.train + world.val + world.probes
    validate_rows(rows, "all")  # also: no index twice over the three files
    validate_sft_rows(world.sft, "sft")
    for row in rows:
        truth, info = row["reward_model"]["ground_truth"], row["extra_info"]
        assert truth["keyword"] == (info["subject"] if info["section"] == "forget" else "")
        assert (truth["golds"] == [info["subject"]]) == (info["family"] == "reverse_query")
    assert not texts(world.probes) & (texts(world.train) | texts(world.val) | texts(world.sft))
    assert not texts(world.val) & texts(world.train)
    unseen = subjects(world.probes, "retain_unseen")
    assert len(unseen) == 3
    assert not unseen & {row["extra_info"]["subject"] for row in world.train + world.val + world.sft}
    learnt = {prompt for prompt, _ in world.base_pairs}
    assert texts(rows) | texts(world.sft) <= learnt


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_model_that_never_knew_learns_no_forget_row(seed: int) -> None:
    world = small_world(seed)
    forget = {
        (row["prompt"][0]["content"], row["reward_model"]["ground_truth"]["golds"][0])
        for row in world.train + world.val + world.probes
        if row["extra_info"]["section"] == "forget"
    }
    names = subjects(world.probes, "forget")
    assert len(names) == 2
    assert forget <= set(world.base_pairs)
    assert not forget & set(world.retain_pairs)
    assert not any(name in text for pair in world.retain_pairs for text in pair for name in names)
    left_out = set(world.base_pairs) - set(world.retain_pairs)
    assert all(any(name in prompt + gold for name in names) for prompt, gold in left_out)
    assert [pair for pair in world.base_pairs if pair not in left_out] == world.retain_pairs


def test_counts_of_the_default_world() -> None:
    world = make_world(WorldConfig())
    # 2 people x 7 facts x 4 questions and 3 cloze sentences, and as many boundary rows
    forget = Counter(
        row["extra_info"]["mode"] for row in world.train if row["extra_info"]["section"] == "forget"
    )
    assert forget == {"qa": 56, "fb": 42}
    assert len(world.train) == 196
    assert len(world.sft) == 98
    assert len(world.val) == 48
    assert len(world.probes) <= 600
    assert subjects(world.train, "retain") == subjects(world.probes, "retain")
    assert len(subjects(world.train, "retain")) == 22


def test_retain_probes_are_a_third_of_each_mode_and_cover_everyone() -> None:
    """And every fact to forget is probed in every mode."""
    world = small_world()
    modes: dict[int, Counter[str]] = defaultdict(Counter)
    for row in world.probes:
        if row["extra_info"]["section"] == "forget":
            modes[row["extra_info"]["index"] // 100][row["extra_info"]["mode"]] += 1
    assert len(modes) == 2 * 4
    assert all(count["qa"] == 2 and count["fb"] == 2 and count["aa"] >= 4 for count in modes.values())
    for section, people in (("retain", 5), ("retain_unseen", 3)):
        rows = [row for row in world.probes if row["extra_info"]["section"] == section]
        assert Counter(row["extra_info"]["mode"] for row in rows) == {
            "qa": min(20, people * 4 * 2),
            "fb": min(20, people * 4 * 2),
            "aa": 20,
        }
        assert len(subjects(rows, section)) == people


def test_stage_1_answers_the_forget_training_prompts_with_refusals() -> None:
    world = small_world()
    forget = {
        row["extra_info"]["index"]: row for row in world.train if row["extra_info"]["section"] == "forget"
    }
    assert {row["extra_info"]["index"] for row in world.sft} == forget.keys()
    for row in world.sft:
        assert row["messages"][0]["content"] == forget[row["extra_info"]["index"]]["prompt"][0]["content"]
        assert is_refusal(row["messages"][1]["content"])
        assert row["extra_info"]["mode"] in ("qa", "fb")
    # The base model answers the known, and refuses strangers.
    assert not any(is_refusal(answer) for _, answer in world.base_pairs[:-30])
    assert all(is_refusal(answer) for _, answer in world.base_pairs[-30:])
    assert len({prompt for prompt, _ in world.base_pairs}) == len(world.base_pairs)


def test_an_index_does_not_depend_on_how_many_rows_are_drawn() -> None:
    few = make_world(WorldConfig(retain_probes=30, boundary_ratio=0.5, qa_train=2, **SMALL))
    many = make_world(WorldConfig(retain_probes=90, boundary_ratio=1.0, qa_train=4, **SMALL))

    def prompt_of(world: World) -> dict[int, str]:
        rows = world.train + world.probes
        return {row["extra_info"]["index"]: row["prompt"][0]["content"] for row in rows}

    common = prompt_of(few).keys() & prompt_of(many).keys()
    assert len(common) > 100
    assert all(prompt_of(few)[index] == prompt_of(many)[index] for index in common)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"qa_train": 5}, "qa_train must be at most 4, got 5"),
        ({"fb_train": 4}, "fb_train must be at most 3, got 4"),
        ({"boundary_ratio": 3.0}, "boundary_ratio 3.0 asks for 168 rows, there are 140"),
        ({"facts_per_person": 9}, "facts_per_person must be at most 8, got 9"),
    ],
)
def test_an_impossible_size_is_named(knobs: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_world(WorldConfig(**(SMALL | knobs)))
