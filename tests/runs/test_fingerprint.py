"""What two runs must have in common to share stored rollouts."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from recipe.rerule.runs.fingerprint import run_identity, vocabulary_digest


class Tokenizer:
    def __init__(self, **vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def get_vocab(self) -> dict[str, int]:
        return self.vocabulary


def config(n: int = 8, length: int = 24) -> object:
    return OmegaConf.create(
        {"actor_rollout_ref": {"rollout": {"n": n}}, "data": {"max_response_length": length}}
    )


def test_the_digest_is_of_the_map_and_not_of_its_order() -> None:
    assert vocabulary_digest(Tokenizer(a=0, b=1)) == vocabulary_digest(Tokenizer(b=1, a=0))
    assert vocabulary_digest(Tokenizer(a=0, b=1)) != vocabulary_digest(Tokenizer(a=1, b=0))
    assert vocabulary_digest(Tokenizer(a=0, b=1)) != vocabulary_digest(Tokenizer(a=0, b=1, c=2))


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        ((config(), Tokenizer(a=0)), set()),
        ((config(n=4), Tokenizer(a=0)), {"actor_rollout_ref.rollout.n"}),
        ((config(length=25), Tokenizer(a=0)), {"data.max_response_length"}),
        ((config(), Tokenizer(a=1)), {"tokenizer"}),
    ],
)
def test_a_difference_shows_under_its_own_setting(other: tuple, differs: set[str]) -> None:
    one, two = run_identity(config(), Tokenizer(a=0)), run_identity(*other)
    assert {setting for setting in one if one[setting] != two[setting]} == differs
