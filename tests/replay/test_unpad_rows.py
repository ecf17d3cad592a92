"""Padded rows to groups: what is kept, what is copied, and which rows are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from recipe.rerule.replay import PromptIdentity, RolloutGroup, unpad_rows
from tests.replay.groups import contents


def one_group(rows: dict[str, Any]) -> RolloutGroup:
    (group,) = unpad_rows([PromptIdentity(7, "retain", "fb")], 4, rows)
    return group


def padded_rows() -> dict[str, Any]:
    """Two rollouts of the prompt 11 12 13: 21 22 23 (22 put in by a tool) and 31, padded with 0."""
    return {
        "prompts": torch.tensor([[0, 11, 12, 13], [0, 11, 12, 13]]),
        "responses": torch.tensor([[21, 22, 23], [31, 0, 0]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0, 0]]),
        "response_mask": torch.tensor([[1, 0, 1], [1, 0, 0]]),
        "old_log_probs": torch.tensor([[-0.1, torch.nan, -0.3], [-0.4, torch.inf, 9.0]]),
        "advantages": torch.tensor([[0.5, 0.5, 0.5], [-0.5, 8.0, 8.0]]),
        "rewards": torch.tensor([1.0, 0.0]),
        "ref_log_prob": torch.tensor([[-1.1, -1.2, -1.3], [-1.4, 7.0, 7.0]]),
    }


def test_drops_padding_and_keeps_row_order() -> None:
    group = one_group(padded_rows())
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


def test_fixes_dtypes() -> None:
    rows = padded_rows()
    for name in ("old_log_probs", "advantages", "rewards", "ref_log_prob"):
        rows[name] = rows[name].to(torch.bfloat16 if name == "advantages" else torch.float64)
    dtypes = {name: plane.dtype for name, plane in one_group(rows).planes().items()}
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
def test_shares_no_memory_with_its_source(all_valid: bool) -> None:
    rows = padded_rows()
    if all_valid:  # nothing to drop and no dtype to change: the case where a copy is easily forgotten
        rows["attention_mask"] = torch.ones_like(rows["attention_mask"])
        rows["response_mask"] = torch.ones(2, 3, dtype=torch.bool)
        rows["old_log_probs"] = torch.zeros(2, 3)
        for name in ("prompts", "responses"):
            rows[name] = rows[name].to(torch.int32)
    group = one_group(rows)
    before = contents(group)
    for plane in rows.values():
        if isinstance(plane, torch.Tensor):
            plane.zero_()
    assert contents(group) == before


def test_wider_padding_changes_nothing() -> None:
    rows = padded_rows()
    wide = dict(rows)
    pad = torch.nn.functional.pad
    wide["prompts"] = pad(rows["prompts"], (5, 0), value=99)
    wide["responses"] = pad(rows["responses"], (0, 4), value=99)
    wide["attention_mask"] = pad(rows["attention_mask"], (5, 4))
    for name in ("response_mask", "old_log_probs", "advantages", "ref_log_prob"):
        wide[name] = pad(rows[name], (0, 4))
    assert contents(one_group(wide)) == contents(one_group(rows))


def test_padding_is_told_by_the_mask_and_not_by_the_token() -> None:
    rows = padded_rows()
    rows["responses"][0, 2] = 0  # a real token that has the padding's number
    assert one_group(rows).response_ids.tolist() == [21, 22, 0, 31]


REFUSED_ROWS = [
    ({"old_log_probs": None}, "old_log_probs is missing"),
    ({"old_log_probs": torch.full((2, 3), torch.nan)}, "old_log_probs holds NaN or infinity"),
    ({"old_log_probs": torch.full((2, 3), -torch.inf)}, "old_log_probs holds NaN or infinity"),
    ({"ref_log_prob": torch.full((2, 3), torch.nan)}, "ref_log_probs holds NaN or infinity"),
    ({"advantages": torch.full((2, 3), torch.nan)}, "advantages holds NaN or infinity"),
    ({"rewards": torch.tensor([0.0, torch.nan])}, "rewards holds NaN or infinity"),
    ({"response_mask": torch.zeros(2, 3)}, "response_mask holds no valid token"),
    ({"response_mask": torch.ones(2, 3)}, "response_mask covers padding"),
    ({"prompts": torch.tensor([[0, 11, 12, 13], [0, 11, 12, 14]])}, "its rows have different prompts"),
    (
        {"attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0, 0]])},
        "its rows have different prompts",
    ),
    *(
        (
            {
                "prompts": torch.tensor([[0, 11, 12, 13], [token, 11, 12, 13]]),
                "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]]),
            },
            "its rows have different prompts",
        )
        for token in (0, 1)
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
    with pytest.raises(ValueError, match=rf"^rollout group of prompt 7 at step 4: {re.escape(reason)}(,|$)"):
        one_group({**padded_rows(), **change})


REFUSED_SHAPES = [
    ({"rewards": torch.tensor([0.0])}, "rewards has shape [1], not [2]"),
    ({"rewards": torch.zeros(2, 1)}, "rewards has shape [2, 1], not [2]"),
    ({"advantages": torch.zeros(2)}, "advantages has shape [2], not [2, 3]"),
    ({"old_log_probs": torch.zeros(3, 3)}, "old_log_probs has shape [3, 3], not [2, 3]"),
    ({"attention_mask": torch.ones(2, 3)}, "attention_mask has shape [2, 3], not [2, 7]"),
    ({"prompts": torch.ones(1, 4).long()}, "prompts has shape [1, 4], not [2, 4]"),
    ({"responses": torch.tensor([21, 22])}, "responses is a torch.int64 tensor of shape [2]"),
    ({"responses": torch.zeros(0, 3).long()}, "0 rows cannot be 1 groups of equal size"),
    ({"prompts": torch.tensor([11, 12])}, "prompts is a torch.int64 tensor of shape [2], not [rows, width]"),
]


@pytest.mark.parametrize(("change", "reason"), REFUSED_SHAPES, ids=[reason for _, reason in REFUSED_SHAPES])
def test_planes_of_another_shape_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=rf"^rollout groups of step 4: {re.escape(reason)}"):
        one_group({**padded_rows(), **change})


def two_groups() -> dict[str, Any]:
    """``padded_rows`` twice, the second time of the shorter prompt 12 13 and with other numbers."""
    first, second = padded_rows(), padded_rows()
    second["prompts"] = torch.tensor([[0, 0, 12, 13], [5, 5, 12, 13]])  # padding may hold any token
    second["attention_mask"][:, 1] = 0
    for name in ("old_log_probs", "advantages", "ref_log_prob", "rewards"):
        second[name] = second[name] * 2
    return {name: torch.cat([first[name], second[name]]) for name in first}


IDENTITIES = [PromptIdentity(7, "retain", "fb"), PromptIdentity(8, "forget", "qa")]


def test_groups_of_one_batch_are_told_apart() -> None:
    first, second = unpad_rows(IDENTITIES, 4, two_groups())
    assert contents(first) == contents(one_group(padded_rows()))
    assert (second.prompt_index, second.side, second.mode, second.step) == (8, "forget", "qa", 4)
    assert second.prompt_ids.tolist() == [12, 13]
    assert second.response_ids.tolist() == [21, 22, 23, 31]
    assert second.lengths.tolist() == [3, 1]
    assert second.response_mask.tolist() == [True, False, True, True]
    assert second.old_log_probs.tolist() == pytest.approx([-0.2, 0.0, -0.6, -0.8])
    assert second.advantages.tolist() == [1.0, 0.0, 1.0, -1.0]
    assert second.rewards.tolist() == [2.0, 0.0]
    assert second.ref_log_probs is not None
    assert second.ref_log_probs.tolist() == pytest.approx([-2.2, 0.0, -2.6, -2.8])


@pytest.mark.parametrize("row", range(4))
def test_a_refusal_names_the_group_at_fault(row: int) -> None:
    prompt = IDENTITIES[row // 2].prompt_index
    for name, value, reason in [
        ("prompts", 99, "its rows have different prompts"),
        ("response_mask", 1, "response_mask covers padding"),
        ("advantages", torch.nan, "advantages holds NaN or infinity"),
    ]:
        rows = two_groups()
        rows["attention_mask"][row, -1] = 0
        rows["response_mask"][row, -1] = 0
        column = -1 if name == "response_mask" else 2 if name == "prompts" else 0
        rows[name][row, column] = value
        with pytest.raises(ValueError, match=rf"^rollout group of prompt {prompt} at step 4: {reason}$"):
            unpad_rows(IDENTITIES, 4, rows)


def test_rows_that_do_not_divide_into_groups_are_refused() -> None:
    rows = {name: plane[:3] for name, plane in two_groups().items()}
    with pytest.raises(
        ValueError, match=r"^rollout groups of step 4: 3 rows cannot be 2 groups of equal size"
    ):
        unpad_rows(IDENTITIES, 4, rows)
    with pytest.raises(ValueError, match=r"^rollout groups of step 4: 3 rows cannot be 0 groups"):
        unpad_rows([], 4, rows)
