"""Attacks that make changed folders: which facts are trained on and scored, with which rows and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.rerule.evaluation.attacks import relearn
from recipe.rerule.evaluation.attacks.attack import Change
from recipe.rerule.evaluation.attacks.registry import attacks
from recipe.rerule.evaluation.attacks.relearn import two_halves, wrong_answers
from recipe.rerule.evaluation.attacks.rows import TrainingRow, find_leaks
from tests.evaluation.attacks.made_material import CITIES, material, probe
from tests.unlearning.made import put_model

FORGET = [probe(n, mode) for n in range(4) for mode in ("qa", "fb")]
TRAIN = [
    *(probe(n, family="training", messages=[{"role": "user", "content": f"Home of {n}?"}]) for n in range(4)),
    *(probe(n, section="retain") for n in (4, 5)),
]


def changes(name: str, **given: Any) -> list[Change]:
    attack = attacks()[name]
    assert attack.changes is not None
    said: dict[str, Any] = {"forget": FORGET, "train": TRAIN} | given
    return list(attack.changes(material(**said), attack.options("quick")))


def rows_of(change: Change) -> list[TrainingRow]:
    return change.write.args[0]  # type: ignore[attr-defined,no-any-return]


def subjects(change: Change) -> set[str]:
    return {one.probe.subject for one in change.scored}


def test_two_folds_score_every_fact_once_and_train_on_none_of_them() -> None:
    for name in ("relearn_forget_half", "relearn_wrong", "relearn_retain", "relearn_benign"):
        found = changes(name, seeds=2)
        assert [(one.fold, one.seed) for one in found] == [(0, 0), (1, 0), (0, 1), (1, 1)]
        for first, second in (found[:2], found[2:]):
            assert subjects(first) | subjects(second) == {f"person {n}" for n in range(4)}
            assert not subjects(first) & subjects(second)
            for one in (first, second):
                assert rows_of(one), name
                assert find_leaks(rows_of(one), [asked.probe.golds[0] for asked in one.scored]) == {}
        assert all(one.settings == ("8", "32") for one in found)


def test_rows_of_the_half_are_those_of_training_phrasings() -> None:
    first, second = changes("relearn_forget_half")
    trained = {row.messages[0]["content"]: row.answer for row in rows_of(first)}
    numbers = [int(subject.split()[1]) for subject in subjects(second)]
    assert trained == {f"Home of {n}?": CITIES[n] for n in numbers}
    # Without such rows: the probes of the half.
    first, second = changes("relearn_forget_half", train=[])
    assert {row.name for row in rows_of(first)} == {
        f"forget-half {asked.probe.index}" for asked in second.scored
    }


def test_rows_that_hold_a_scored_answer_are_left_out() -> None:
    leaking = [*TRAIN, probe(6, section="retain")]  # lives in Paris, as person 0 does
    first, second = changes("relearn_retain", train=leaking)
    for one in (first, second):
        names = {row.answer for row in rows_of(one)}
        assert ("Paris" in names) == ("person 0" not in subjects(one))
    only = [probe(n, section="retain") for n in range(6, 10)]
    with pytest.raises(ValueError, match="relearning on retain rows has nothing to train on"):
        changes("relearn_retain", forget=[probe(0), probe(1)], train=[probe(6, section="retain")])
    assert changes("relearn_retain", train=only)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_model(tmp_path_factory.mktemp("models") / "model")


@given(st.sets(st.integers() | st.tuples(st.just("x"), st.integers()), min_size=2), st.integers(0, 9))
def test_halves_are_a_partition_that_depends_on_the_seed_and_the_set_alone(facts: Any, seed: int) -> None:
    one, other = two_halves(facts, seed)
    assert one | other == facts
    assert not one & other
    assert len(other) - len(one) == len(facts) % 2
    assert two_halves([*reversed(list(facts)), *facts], seed) == (one, other)


def test_wrong_answers_are_never_right_and_of_the_same_kind() -> None:
    numbers = [probe(50 + n, golds=[f"{n}"], family="number") for n in range(2)]
    given = [*FORGET, *numbers]

    def made(seed: int) -> list[TrainingRow]:
        return wrong_answers(given, lambda one: one.subject, seed)

    for asked, row in zip(given, made(0), strict=True):
        assert row.name == f"wrong {asked.index}"
        assert row.answer not in asked.golds
        assert row.messages == asked.messages
        assert row.answer.isdigit() == (asked.family == "number")
    assert made(0) == made(0) != made(1)
    with pytest.raises(ValueError, match="probe 500 has no wrong answer"):
        wrong_answers([*FORGET, numbers[0]], lambda one: one.subject, 0)


def test_large_models_get_an_adapter(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert relearn.settings_for(model, 3).lora is None
    monkeypatch.setattr(relearn, "SMALL", 10)
    settings = relearn.settings_for(model, 3)
    assert settings.lora is not None
    assert (settings.lora.rank, settings.learning_rate, settings.seed) == (16, 1e-4, 3)
