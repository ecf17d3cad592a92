from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from recipe.rerule.replay import ReplayBuffer, RolloutGroup

MakeGroup = Callable[..., RolloutGroup]
Contents = Callable[[RolloutGroup], dict[str, object]]


def padded_rows() -> dict[str, Any]:
    """Two rollouts of the prompt 11 12 13: 21 22 23 (22 put in by a tool) and 31, padded with 0."""
    return {
        "prompt_index": 7,
        "side": "retain",
        "mode": "fb",
        "step": 4,
        "prompts": torch.tensor([[0, 11, 12, 13], [0, 11, 12, 13]]),
        "responses": torch.tensor([[21, 22, 23], [31, 0, 0]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0, 0]]),
        "response_mask": torch.tensor([[1, 0, 1], [1, 0, 0]]),
        "old_log_probs": torch.tensor([[-0.1, torch.nan, -0.3], [-0.4, torch.inf, 9.0]]),
        "advantages": torch.tensor([[0.5, 0.5, 0.5], [-0.5, 8.0, 8.0]]),
        "rewards": torch.tensor([1.0, 0.0]),
        "ref_log_probs": torch.tensor([[-1.1, -1.2, -1.3], [-1.4, 7.0, 7.0]]),
    }


def test_from_rows_drops_padding_and_keeps_row_order() -> None:
    group = RolloutGroup.from_rows(**padded_rows())
    assert (group.prompt_index, group.side, group.mode, group.step) == (7, "retain", "fb", 4)
    assert group.prompt_ids.tolist() == [11, 12, 13]
    assert group.response_ids.tolist() == [21, 22, 23, 31]
    assert group.lengths.tolist() == [3, 1]
    assert group.response_mask.tolist() == [True, False, True, True]
    assert group.old_log_probs.tolist() == pytest.approx([-0.1, 0.0, -0.3, -0.4])
    assert group.ref_log_probs is not None
    assert group.ref_log_probs.tolist() == pytest.approx([-1.1, 0.0, -1.3, -1.4])
    assert group.advantages.tolist() == [0.5, 0.0, 0.5, -0.5]
    assert group.rewards.tolist() == [1.0, 0.0]
    assert group.n == 2
    assert group.mean_reward == 0.5
    assert group.total_tokens == 2 * 3 + 3 + 1


def test_from_rows_fixes_dtypes() -> None:
    rows = padded_rows()
    for name in ("old_log_probs", "advantages", "rewards", "ref_log_probs"):
        rows[name] = rows[name].to(torch.bfloat16 if name == "advantages" else torch.float64)
    dtypes = {name: plane.dtype for name, plane in RolloutGroup.from_rows(**rows).planes().items()}
    assert dtypes == {
        "prompt_ids": torch.int32,
        "response_ids": torch.int32,
        "lengths": torch.int32,
        "response_mask": torch.bool,
        "old_log_probs": torch.float32,
        "ref_log_probs": torch.float32,
        "advantages": torch.float32,
        "rewards": torch.float32,
    }


@pytest.mark.parametrize("all_valid", [False, True])
def test_from_rows_shares_no_memory_with_its_source(all_valid: bool, contents: Contents) -> None:
    rows = padded_rows()
    if all_valid:  # nothing to drop and no dtype to change: the case where a copy is easily forgotten
        rows["attention_mask"] = torch.ones_like(rows["attention_mask"])
        rows["response_mask"] = torch.ones(2, 3, dtype=torch.bool)
        rows["old_log_probs"] = torch.zeros(2, 3)
        for name in ("prompts", "responses"):
            rows[name] = rows[name].to(torch.int32)
    group = RolloutGroup.from_rows(**rows)
    before = contents(group)
    for plane in rows.values():
        if isinstance(plane, torch.Tensor):
            plane.zero_()
    assert contents(group) == before


def test_wider_padding_changes_nothing(contents: Contents) -> None:
    rows = padded_rows()
    wide = dict(rows)
    pad = torch.nn.functional.pad
    wide["prompts"] = pad(rows["prompts"], (5, 0), value=99)
    wide["responses"] = pad(rows["responses"], (0, 4), value=99)
    wide["attention_mask"] = pad(rows["attention_mask"], (5, 4))
    for name in ("response_mask", "old_log_probs", "advantages", "ref_log_probs"):
        wide[name] = pad(rows[name], (0, 4))
    assert contents(RolloutGroup.from_rows(**wide)) == contents(RolloutGroup.from_rows(**rows))


def test_padding_is_told_by_the_mask_and_not_by_the_token() -> None:
    rows = padded_rows()
    rows["responses"][0, 2] = 0  # a real token that has the padding's number
    assert RolloutGroup.from_rows(**rows).response_ids.tolist() == [21, 22, 0, 31]


REFUSED_ROWS = [
    ({"old_log_probs": None}, "old_log_probs is missing"),
    ({"side": "reject"}, "side is 'reject', not one of forget, retain"),
    ({"old_log_probs": torch.full((2, 3), torch.nan)}, "old_log_probs holds NaN or infinity"),
    ({"old_log_probs": torch.full((2, 3), -torch.inf)}, "old_log_probs holds NaN or infinity"),
    ({"ref_log_probs": torch.full((2, 3), torch.nan)}, "ref_log_probs holds NaN or infinity"),
    ({"advantages": torch.full((2, 3), torch.nan)}, "advantages holds NaN or infinity"),
    ({"rewards": torch.tensor([0.0, torch.nan])}, "rewards holds NaN or infinity"),
    ({"rewards": torch.tensor([0.0])}, "it has 1 rewards for 2 rollouts"),
    ({"rewards": torch.zeros(2, 1)}, "rewards is a torch.float32 tensor of shape [2, 1]"),
    ({"response_mask": torch.zeros(2, 3)}, "response_mask holds no valid token"),
    ({"response_mask": torch.ones(2, 3)}, "response_mask covers padding"),
    ({"advantages": torch.zeros(2)}, "advantages has shape [2], not [2, 3]"),
    ({"old_log_probs": torch.zeros(3, 3)}, "old_log_probs has shape [3, 3], not [2, 3]"),
    ({"attention_mask": torch.ones(2, 3)}, "attention_mask has shape [2, 3], not [2, 7]"),
    ({"prompts": torch.ones(1, 4).long()}, "prompts has shape [1, 4], not [2, 4]"),
    ({"responses": torch.tensor([21, 22])}, "responses is a torch.int64 tensor of shape [2]"),
    ({"responses": torch.zeros(0, 3).long()}, "responses is a torch.int64 tensor of shape [0, 3]"),
    ({"prompts": torch.tensor([[0, 11, 12, 13], [0, 11, 12, 14]])}, "its rows have different prompts"),
    (
        {"attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0, 0]])},
        "its rows have different prompts",
    ),
    (
        {"attention_mask": torch.tensor([[1, 1, 1, 0, 1, 1, 1], [1, 1, 1, 0, 1, 0, 0]])},
        "prompts are not left-padded",
    ),
    (
        {"attention_mask": torch.tensor([[0, 1, 0, 1, 1, 1, 1], [0, 1, 0, 1, 1, 0, 0]])},
        "prompts are not left-padded",
    ),
    (
        {"attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0, 1]])},
        "responses are not right-padded",
    ),
    (
        {"attention_mask": torch.tensor([[0, 1, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 0, 0]])},
        "responses are not right-padded",
    ),
]


@pytest.mark.parametrize(("change", "reason"), REFUSED_ROWS, ids=[reason for _, reason in REFUSED_ROWS])
def test_rows_that_are_no_whole_group_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match="rollout group of prompt 7 at step 4: ") as caught:
        RolloutGroup.from_rows(**{**padded_rows(), **change})
    assert re.search(rf": {re.escape(reason)}(,|$)", str(caught.value))
    assert "\n" not in str(caught.value)


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
]


@pytest.mark.parametrize(("name", "plane", "reason"), REFUSED_PLANES)
def test_planes_that_do_not_fit_are_refused(
    name: str, plane: object, reason: str, make_group: MakeGroup
) -> None:
    with pytest.raises(ValueError, match="rollout group of prompt 0 at step 1") as caught:
        dataclasses.replace(make_group(lengths=[2, 3]), **{name: plane})
    assert re.search(rf": {re.escape(reason)}(,|$)", str(caught.value))


def test_group_cannot_be_reassigned(make_group: MakeGroup) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_group().step = 9  # type: ignore[misc]


def test_signal_needs_valid_advantages_that_differ(make_group: MakeGroup) -> None:
    assert not make_group(advantages=[0.3, 0.3]).has_signal
    assert not make_group(advantages=[-0.3, -0.3]).has_signal
    assert make_group(advantages=[0.3, 0.25]).has_signal
    assert make_group(advantages=[0.0, -1e-30]).has_signal
    assert not make_group(advantages=[0.0, 0.0]).has_signal
    signal_in_second_row = make_group(lengths=[2, 1], advantages=[0.0, 1.0])
    masked = torch.tensor([True, True, False])
    assert not dataclasses.replace(signal_in_second_row, response_mask=masked).has_signal


def test_signal_is_the_mean_advantage_magnitude_over_valid_tokens(make_group: MakeGroup) -> None:
    group = make_group(lengths=[2, 1, 1], rewards=[0.0] * 3, advantages=[-1.0, 0.5, 0.0])
    assert group.signal == (1 + 1 + 0.5 + 0) / 4
    mask = torch.tensor([True, False, True, False])
    assert dataclasses.replace(group, response_mask=mask).signal == (1 + 0.5) / 2
    assert make_group(advantages=[0.0, 0.0]).signal == 0.0
    assert make_group(advantages=[0.3, 0.3]).signal == 0.0


def test_a_single_rollout_has_signal_unless_its_advantage_is_0(make_group: MakeGroup) -> None:
    """As with a critic and rollout.n = 1: there is no other response to compare with."""
    assert make_group(rewards=[0.5], advantages=[0.5]).has_signal
    assert not make_group(rewards=[0.5], advantages=[0.0]).has_signal


@pytest.mark.parametrize("n", [3, 6, 8, 12])
@pytest.mark.parametrize("estimator", ["grpo", "grpo_vectorized", "rloo", "reinforce_plus_plus_baseline"])
def test_equal_rewards_have_no_signal_whatever_rounding_makes_of_them(
    estimator: str, n: int, make_group: MakeGroup
) -> None:
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


def test_tiny_advantages_still_make_a_signal(make_group: MakeGroup) -> None:
    """The stored form tells by the mean whether there is a signal; it must not underflow."""
    group = make_group(lengths=[500, 500], advantages=[0.0, 1e-45])
    assert group.has_signal
    assert group.signal > 0


@pytest.mark.parametrize("with_ref", [True, False])
def test_memory_is_within_1_2_of_the_unpadded_floor(with_ref: bool, make_group: MakeGroup) -> None:
    lengths = [17, 256, 3, 40, 99, 1, 64, 128]
    tokens = 17 + 256 + 3 + 40 + 99 + 1 + 64 + 128
    float_planes = 3 if with_ref else 2
    floor = 4 * 30 + tokens * (4 + 1 + 4 * float_planes) + 4 * 8
    buffer = ReplayBuffer(capacity=20)
    for index in range(20):
        made = make_group(index, lengths=lengths, rewards=[0.0] * 8, prompt_length=30, with_ref=with_ref)
        buffer.add(made)
    assert 20 * floor <= buffer.nbytes <= 1.2 * 20 * floor


def test_tensors_own_no_more_memory_than_they_show() -> None:
    group = RolloutGroup.from_rows(**padded_rows())
    for name, plane in group.planes().items():
        assert plane.untyped_storage().nbytes() == plane.numel() * plane.element_size(), name
