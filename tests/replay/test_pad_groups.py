from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import PromptIdentity, RolloutGroup, pad_groups, unpad_rows
from tests.replay.groups import contents, make_group

PAD = 999


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def two_groups() -> list[RolloutGroup]:
    common: dict[str, Any] = {"mode": "qa", "step": 1}
    first = RolloutGroup(
        prompt_index=0,
        side="forget",
        prompt_ids=int32(1, 2, 3),
        response_ids=int32(11, 21, 22),
        lengths=int32(1, 2),
        response_mask=torch.tensor([True, False, True]),
        old_log_probs=torch.tensor([-1.0, -2.0, -3.0]),
        advantages=torch.tensor([0.5, -0.5, -0.5]),
        rewards=torch.tensor([1.0, 0.0]),
        ref_log_probs=torch.tensor([-4.0, -5.0, -6.0]),
        **common,
    )
    second = RolloutGroup(
        prompt_index=1,
        side="retain",
        prompt_ids=int32(4),
        response_ids=int32(31, 32, 33),
        lengths=int32(3),
        response_mask=torch.ones(3, dtype=torch.bool),
        old_log_probs=torch.tensor([-7.0, -8.0, -9.0]),
        advantages=torch.tensor([0.25, 0.25, 0.25]),
        rewards=torch.tensor([0.5]),
        ref_log_probs=torch.tensor([-1.5, -2.5, -3.5]),
        **common,
    )
    return [first, second]


def test_rows_by_hand() -> None:
    batch = pad_groups(two_groups(), pad_token_id=PAD)
    expected = {
        "prompts": [[1, 2, 3], [1, 2, 3], [PAD, PAD, 4]],
        "responses": [[11, PAD, PAD], [21, 22, PAD], [31, 32, 33]],
        "input_ids": [[1, 2, 3, 11, PAD, PAD], [1, 2, 3, 21, 22, PAD], [PAD, PAD, 4, 31, 32, 33]],
        "attention_mask": [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1]],
        "position_ids": [[0, 1, 2, 3, 3, 3], [0, 1, 2, 3, 4, 4], [0, 0, 0, 1, 2, 3]],
        "response_mask": [[1, 0, 0], [0, 1, 0], [1, 1, 1]],
        "old_log_probs": [[-1, 0, 0], [-2, -3, 0], [-7, -8, -9]],
        "advantages": [[0.5, 0, 0], [-0.5, -0.5, 0], [0.25, 0.25, 0.25]],
        "rewards": [1.0, 0.0, 0.5],
        "ref_log_prob": [[-4, 0, 0], [-5, -6, 0], [-1.5, -2.5, -3.5]],
    }
    assert {name: tensor.tolist() for name, tensor in batch.items()} == expected
    floats = {"old_log_probs", "advantages", "rewards", "ref_log_prob"}
    for name, tensor in batch.items():
        assert tensor.dtype == (torch.float32 if name in floats else torch.int64), name


def test_reference_is_left_out_when_a_group_lacks_it() -> None:
    first, second = two_groups()
    batch = pad_groups([first, dataclasses.replace(second, ref_log_probs=None)], pad_token_id=PAD)
    assert "ref_log_prob" not in batch
    assert batch["old_log_probs"].shape == (3, 3)


def test_nothing_to_pad_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^there are no rollout groups to pad$"):
        pad_groups([], pad_token_id=PAD)


shapes = st.lists(
    st.tuples(st.integers(1, 5), st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any)),
    min_size=1,
    max_size=5,
)


@settings(deadline=None)
@given(shapes=shapes, with_ref=st.booleans())
def test_groups_come_back_from_their_rows(shapes: list[tuple[int, list[int]]], with_ref: bool) -> None:
    groups = [
        make_group(i, prompt_length=p, lengths=lengths, rewards=[0.5] * len(lengths), with_ref=with_ref)
        for i, (p, lengths) in enumerate(shapes)
    ]
    batch = pad_groups(groups, pad_token_id=1)  # 1 occurs among the real tokens too
    assert ("ref_log_prob" in batch) == with_ref
    del batch["input_ids"], batch["position_ids"]
    start = 0
    for group in groups:
        rows = {name: tensor[start : start + group.n] for name, tensor in batch.items()}
        start += group.n
        (back,) = unpad_rows([identity(group)], group.step, rows)
        assert contents(back) == contents(group)
    assert start == len(batch["rewards"])


def identity(group: RolloutGroup) -> PromptIdentity:
    return PromptIdentity(group.prompt_index, group.side, group.mode)


def equal_groups(with_ref: bool = True) -> list[RolloutGroup]:
    return [
        make_group(index, prompt_length=1 + index, lengths=[2, index], with_ref=with_ref)
        for index in (1, 2, 3)
    ]


@pytest.mark.parametrize("with_ref", [False, True])
def test_a_whole_batch_comes_back_as_it_was_padded(with_ref: bool) -> None:
    """Names that a group does not keep, as input_ids, are ignored."""
    groups = equal_groups(with_ref)
    back = unpad_rows([identity(group) for group in groups], 1, pad_groups(groups, pad_token_id=1))
    assert [contents(group) for group in back] == [contents(group) for group in groups]


@pytest.mark.parametrize(
    "name", ["prompts", "responses", "attention_mask", "response_mask", "advantages", "rewards"]
)
@pytest.mark.parametrize("given", [False, True], ids=["missing", "None"])
def test_rows_that_are_missing_are_named(name: str, given: bool) -> None:
    groups = equal_groups()
    rows: dict[str, Any] = pad_groups(groups, pad_token_id=1)
    del rows[name]
    if given:
        rows[name] = None
    with pytest.raises(ValueError, match=rf"^rollout groups of step 4: {name} is missing$"):
        unpad_rows([identity(group) for group in groups], 4, rows)
