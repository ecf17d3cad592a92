from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.evaluation.attacks.folds import two_folds, two_halves


@settings(max_examples=40)
@given(st.sets(st.integers() | st.tuples(st.just("x"), st.integers()), min_size=2), st.integers(0, 9))
def test_halves_are_a_partition(facts: set[object], seed: int) -> None:
    one, other = two_halves(facts, seed)
    assert one | other == facts
    assert not one & other
    assert len(other) - len(one) == len(facts) % 2


def test_halves_depend_on_the_seed_and_the_set_alone() -> None:
    facts = [("forget", f"person {number}") for number in range(40)]
    shuffled = random.Random(1).sample(facts, 40)
    assert two_halves(facts, 3) == two_halves([*shuffled, *facts], 3)
    assert len({two_halves(facts, seed) for seed in range(10)}) == 10


def test_halves_are_random() -> None:
    """Over 400 seeds, each of 10 facts falls into the first half about as often as into the second."""
    counts = [sum(fact in two_halves(range(10), seed)[0] for seed in range(400)) for fact in range(10)]
    assert all(150 < count < 250 for count in counts)


def test_every_item_is_scored_once_and_never_after_training_on_its_fact() -> None:
    items = list(range(100, 160))  # 20 facts with 3 items each, not neighbours
    folds = two_folds(items, lambda item: item % 20, seed=0)
    assert sorted(item for fold in folds for item in fold.scored) == items
    for fold in folds:
        assert not {item % 20 for item in fold.trained} & {item % 20 for item in fold.scored}
        assert len(fold.trained) == len(fold.scored) == 30
        assert fold.trained == sorted(fold.trained)
    assert folds[0].trained == folds[1].scored
    assert folds[1].trained == folds[0].scored


def test_one_fact_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="1 facts cannot be split"):
        two_folds([1, 2, 3], lambda item: "the same", seed=0)
