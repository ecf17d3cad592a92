"""What two runs must have in common to share stored rollouts."""

from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from recipe.rerule.training.saved_run import run_identity


def identity(n: int = 8, length: int = 24, **vocabulary: int) -> dict[str, Any]:
    rollout = {"actor_rollout_ref": {"rollout": {"n": n}}, "data": {"max_response_length": length}}
    return run_identity(OmegaConf.create(rollout), SimpleNamespace(get_vocab=lambda: vocabulary))


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (identity(a=0, b=1), []),
        (identity(b=1, a=0), []),
        (identity(n=4, a=0, b=1), ["actor_rollout_ref.rollout.n"]),
        (identity(length=25, a=0, b=1), ["data.max_response_length"]),
        (identity(a=1, b=0), ["tokenizer"]),
        (identity(a=0, b=1, c=2), ["tokenizer"]),
    ],
)
def test_a_difference_shows_under_its_own_setting(other: dict[str, Any], differs: list[str]) -> None:
    one = identity(a=0, b=1)
    assert [setting for setting in one if one[setting] != other[setting]] == differs
