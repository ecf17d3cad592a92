from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch

from tests.replay.groups import make_group

REFUSED_PLANES = [
    ("lengths", torch.tensor([2, 4], dtype=torch.int32), "response_ids has 5 values for 6 response tokens"),
    ("lengths", torch.tensor([6, -1], dtype=torch.int32), "lengths holds a negative number"),
    ("lengths", torch.tensor([2, 3]), "lengths is a torch.int64 tensor of shape [2]"),
    ("lengths", torch.tensor([], dtype=torch.int32), "it has no rollout or no prompt token"),
    ("prompt_ids", torch.tensor([], dtype=torch.int32), "it has no rollout or no prompt token"),
    ("prompt_ids", torch.ones(1, 2, dtype=torch.int32), "prompt_ids is a torch.int32 tensor of shape [1, 2]"),
    ("advantages", torch.zeros(4), "advantages has 4 values for 5 response tokens"),
    ("ref_log_probs", torch.zeros(4), "ref_log_probs has 4 values for 5 response tokens"),
    ("response_mask", torch.ones(5), "response_mask is a torch.float32 tensor of shape [5]"),
    ("old_log_probs", [0.0] * 5, "old_log_probs is a list"),
    ("rewards", torch.zeros(1), "it has 1 rewards for 2 rollouts"),
    ("side", "reject", "side is 'reject', not one of forget, retain"),
]


@pytest.mark.parametrize(("name", "plane", "reason"), REFUSED_PLANES)
def test_planes_that_do_not_fit_are_refused(name: str, plane: object, reason: str) -> None:
    with pytest.raises(ValueError, match="rollout group of prompt 0 at step 1") as caught:
        dataclasses.replace(make_group(lengths=[2, 3]), **{name: plane})
    assert re.search(rf": {re.escape(reason)}(,|$)", str(caught.value))


def test_group_cannot_be_reassigned() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_group().step = 9  # type: ignore[misc]


def test_signal_needs_valid_advantages_that_differ() -> None:
    assert not make_group(advantages=[0.3, 0.3]).has_signal
    assert not make_group(advantages=[-0.3, -0.3]).has_signal
    assert make_group(advantages=[0.3, 0.25]).has_signal
    assert make_group(advantages=[0.0, -1e-30]).has_signal
    assert not make_group(advantages=[0.0, 0.0]).has_signal
    signal_in_second_row = make_group(lengths=[2, 1], advantages=[0.0, 1.0])
    masked = torch.tensor([True, True, False])
    assert not dataclasses.replace(signal_in_second_row, response_mask=masked).has_signal


def test_signal_is_the_mean_advantage_magnitude_over_valid_tokens() -> None:
    group = make_group(lengths=[2, 1, 1], rewards=[0.0] * 3, advantages=[-1.0, 0.5, 0.0])
    assert group.signal == (1 + 1 + 0.5 + 0) / 4
    mask = torch.tensor([True, False, True, False])
    assert dataclasses.replace(group, response_mask=mask).signal == (1 + 0.5) / 2
    assert make_group(advantages=[0.0, 0.0]).signal == 0.0
    assert make_group(advantages=[0.3, 0.3]).signal == 0.0


def test_a_single_rollout_has_signal_unless_its_advantage_is_0() -> None:
    """As with a critic and rollout.n = 1: there is no other response to compare with."""
    assert make_group(rewards=[0.5], advantages=[0.5]).has_signal
    assert not make_group(rewards=[0.5], advantages=[0.0]).has_signal


@pytest.mark.parametrize("n", [3, 6, 8, 12])
@pytest.mark.parametrize("estimator", ["grpo", "grpo_vectorized", "rloo", "reinforce_plus_plus_baseline"])
def test_equal_rewards_have_no_signal_whatever_rounding_makes_of_them(estimator: str, n: int) -> None:
    """verl's own estimators, on a group of equal rewards beside one that is not."""
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    mask = torch.ones(2 * n, 2)
    scores = torch.zeros(2 * n, 2)
    for reward in (0.1, 0.3, 0.7):
        scores[:n, 1] = reward
        scores[n:, 1] = torch.linspace(0, 1, n)
        uids = np.array(["equal"] * n + ["spread"] * n, dtype=object)
        advantages, _ = get_adv_estimator_fn(estimator)(
            token_level_rewards=scores.clone(), response_mask=mask, index=uids, config=None
        )
        equal, spread = (
            make_group(rewards=[reward] * n, lengths=[2] * n, advantages=rows[:, 0].tolist())
            for rows in advantages.split(n)
        )
        assert not equal.has_signal
        assert equal.signal == 0
        assert spread.has_signal


def test_tiny_advantages_still_make_a_signal() -> None:
    """The stored form tells by the mean whether there is a signal; it must not underflow."""
    group = make_group(lengths=[500, 500], advantages=[0.0, 1e-45])
    assert group.has_signal
    assert group.signal > 0
