"""Rollout groups: what makes one, and padded rows to groups and back."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import PromptIdentity, RolloutGroup, pad_groups, unpad_rows
from tests.replay.groups import contents, make_group

PAD = 999


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


REFUSED_PLANES = [
    ("lengths", int32(2, 4), "response_ids has 5 values for 6 response tokens"),
    ("lengths", int32(6, -1), "lengths holds a negative number"),
    ("lengths", torch.tensor([2, 3]), "lengths is a torch.int64 tensor of shape [2]"),
    ("lengths", int32(), "it has no rollout or no prompt token"),
    ("prompt_ids", int32(), "it has no rollout or no prompt token"),
    ("prompt_ids", int32(1, 2)[None], "prompt_ids is a torch.int32 tensor of shape [1, 2]"),
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


def masked(group: RolloutGroup, *mask: bool) -> RolloutGroup:
    return dataclasses.replace(group, response_mask=torch.tensor(mask))


# A single rollout, as with a critic, has no other response to compare with: any advantage but 0 counts.
SIGNALS = [
    (make_group(lengths=[2, 1, 1], rewards=[0.0] * 3, advantages=[-1.0, 0.5, 0.0]), (1 + 1 + 0.5 + 0) / 4),
    (masked(make_group(lengths=[2, 2], advantages=[-1.0, 0.5]), True, False, True, False), (1 + 0.5) / 2),
    (masked(make_group(lengths=[2, 1], advantages=[0.0, 1.0]), True, True, False), 0.0),
    (make_group(advantages=[0.3, 0.3]), 0.0),
    (make_group(advantages=[-0.3, -0.3]), 0.0),
    (make_group(advantages=[0.0, 0.0]), 0.0),
    (make_group(lengths=[1, 1], advantages=[0.5, 0.25]), 0.375),
    (make_group(rewards=[0.5], advantages=[0.5]), 0.5),
    (make_group(rewards=[0.5], advantages=[0.0]), 0.0),
]


@pytest.mark.parametrize(("group", "signal"), SIGNALS)
def test_signal_is_the_mean_advantage_magnitude_of_valid_tokens_where_it_differs(
    group: RolloutGroup, signal: float
) -> None:
    assert group.signal == signal
    assert group.has_signal == (signal > 0)


def test_tiny_advantages_still_make_a_signal() -> None:
    """The stored form tells by the mean whether there is a signal; it must not underflow."""
    group = make_group(lengths=[500, 500], advantages=[0.0, 1e-45])
    assert group.has_signal
    assert group.signal > 0


@pytest.mark.parametrize("n", [3, 6, 8, 12])
@pytest.mark.parametrize("estimator", ["grpo", "grpo_vectorized", "rloo", "reinforce_plus_plus_baseline"])
def test_equal_rewards_have_no_signal_whatever_rounding_makes_of_them(estimator: str, n: int) -> None:
    """verl's own estimators, on a group of equal rewards beside one that is not."""
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    mask, scores = torch.ones(2 * n, 2), torch.zeros(2 * n, 2)
    uids = np.array(["equal"] * n + ["spread"] * n, dtype=object)
    for reward in (0.1, 0.3, 0.7):
        scores[:, 1] = torch.cat([torch.full((n,), reward), torch.linspace(0, 1, n)])
        advantages, _ = get_adv_estimator_fn(estimator)(
            token_level_rewards=scores.clone(), response_mask=mask, index=uids, config=None
        )
        equal, spread = (
            make_group(rewards=[reward] * n, lengths=[2] * n, advantages=rows[:, 0].tolist())
            for rows in advantages.split(n)
        )
        assert not equal.has_signal
        assert spread.has_signal


IDENTITIES = [PromptIdentity(7, "retain", "fb"), PromptIdentity(8, "forget", "qa")]


def padded_rows() -> dict[str, Any]:
    """Two rollouts of the prompt 11 12 13: 21 22 23 (22 put in by a tool) and 31, padded with 0."""
    return {
        "prompts": torch.tensor([[0, 11, 12, 13], [0, 11, 12, 13]]),
        "responses": torch.tensor([[21, 22, 23], [31, 0, 0]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0, 0]]),
        "response_mask": torch.tensor([[1, 0, 1], [1, 0, 0]]),
        "old_log_probs": torch.tensor([[-0.5, torch.nan, -0.25], [-0.75, torch.inf, 9.0]]),
        "advantages": torch.tensor([[0.5, 0.5, 0.5], [-0.5, 8.0, 8.0]]),
        "rewards": torch.tensor([1.0, 0.0]),
        "ref_log_prob": torch.tensor([[-1.5, -1.25, -1.75], [-2.25, 7.0, 7.0]]),
    }


def padded_twice() -> dict[str, Any]:
    """``padded_rows`` twice, the second time of the shorter prompt 12 13 and with doubled numbers."""
    first, second = padded_rows(), padded_rows()
    second["prompts"] = torch.tensor([[0, 0, 12, 13], [5, 5, 12, 13]])  # padding may hold any token
    second["attention_mask"][:, 1] = 0
    for name in ("old_log_probs", "advantages", "ref_log_prob", "rewards"):
        second[name] = second[name] * 2
    return {name: torch.cat([first[name], second[name]]) for name in first}


def one_group(rows: dict[str, Any]) -> RolloutGroup:
    (group,) = unpad_rows(IDENTITIES[:1], 4, rows)
    return group


def test_rows_become_groups_without_their_padding() -> None:
    first, second = unpad_rows(IDENTITIES, 4, padded_twice())
    for factor, prompt, identity, group in (
        (1, [11, 12, 13], IDENTITIES[0], first),
        (2, [12, 13], IDENTITIES[1], second),
    ):
        assert (group.prompt_index, group.side, group.mode, group.step) == (*identity, 4)
        floats = ("old_log_probs", "ref_log_probs", "advantages", "rewards")
        planes = {name: plane / factor if name in floats else plane for name, plane in group.planes().items()}
        assert {name: plane.tolist() for name, plane in planes.items()} == {
            "prompt_ids": prompt,
            "response_ids": [21, 22, 23, 31],
            "lengths": [3, 1],
            "response_mask": [True, False, True, True],
            "old_log_probs": [-0.5, 0.0, -0.25, -0.75],
            "ref_log_probs": [-1.5, 0.0, -1.75, -2.25],
            "advantages": [0.5, 0.0, 0.5, -0.5],
            "rewards": [1.0, 0.0],
        }
    assert (first.n, first.mean_reward, first.total_tokens) == (2, 0.5, 2 * 3 + 3 + 1)


def test_groups_become_padded_rows() -> None:
    batch = pad_groups(unpad_rows(IDENTITIES, 4, padded_twice()), pad_token_id=PAD)
    expected = {
        "prompts": [[11, 12, 13], [11, 12, 13], [PAD, 12, 13], [PAD, 12, 13]],
        "responses": [[21, 22, 23], [31, PAD, PAD]] * 2,
        "input_ids": [
            [11, 12, 13, 21, 22, 23],
            [11, 12, 13, 31, PAD, PAD],
            [PAD, 12, 13, 21, 22, 23],
            [PAD, 12, 13, 31, PAD, PAD],
        ],
        "attention_mask": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0]],
        "position_ids": [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 3, 3], [0, 0, 1, 2, 3, 4], [0, 0, 1, 2, 2, 2]],
        "response_mask": [[1, 0, 1], [1, 0, 0]] * 2,
        "old_log_probs": [[-0.5, 0, -0.25], [-0.75, 0, 0], [-1, 0, -0.5], [-1.5, 0, 0]],
        "advantages": [[0.5, 0, 0.5], [-0.5, 0, 0], [1, 0, 1], [-1, 0, 0]],
        "rewards": [1, 0, 2, 0],
        "ref_log_prob": [[-1.5, 0, -1.75], [-2.25, 0, 0], [-3, 0, -3.5], [-4.5, 0, 0]],
    }
    assert {name: tensor.tolist() for name, tensor in batch.items()} == expected
    floats = {"old_log_probs", "advantages", "rewards", "ref_log_prob"}
    for name, tensor in batch.items():
        assert tensor.dtype == (torch.float32 if name in floats else torch.int64), name


def test_groups_of_other_sizes_go_together_without_a_reference_where_one_lacks_it() -> None:
    groups = [
        one_group(padded_rows()),
        make_group(rewards=[0.25], lengths=[2], prompt_length=1, with_ref=False),
    ]
    batch = pad_groups(groups, pad_token_id=PAD)
    assert "ref_log_prob" not in batch
    assert batch["rewards"].tolist() == [1.0, 0.0, 0.25]
    assert batch["attention_mask"].tolist() == [[1] * 6, [1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0]]


def test_nothing_to_pad_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^there are no rollout groups to pad$"):
        pad_groups([], pad_token_id=PAD)


@settings(deadline=None)
@given(n=st.integers(1, 4), count=st.integers(1, 5), with_ref=st.booleans(), data=st.data())
def test_groups_come_back_from_their_rows(n: int, count: int, with_ref: bool, data: st.DataObject) -> None:
    """Names that a group does not keep, as input_ids, are ignored; 1 is padding and a real token too."""
    lengths = st.lists(st.integers(0, 6), min_size=n, max_size=n).filter(any)
    groups = [
        make_group(index, 4, [0.5] * n, data.draw(lengths), data.draw(st.integers(1, 5)), with_ref=with_ref)
        for index in range(count)
    ]
    identities = [PromptIdentity(group.prompt_index, group.side, group.mode) for group in groups]
    batch = pad_groups(groups, pad_token_id=1)
    assert ("ref_log_prob" in batch) == with_ref
    back = unpad_rows(identities, 4, batch)
    assert [contents(group) for group in back] == [contents(group) for group in groups]


def test_dtypes_of_the_rows_are_fixed() -> None:
    rows = padded_rows()
    for name in ("old_log_probs", "advantages", "rewards", "ref_log_prob"):
        rows[name] = rows[name].to(torch.bfloat16 if name == "advantages" else torch.float64)
    assert contents(one_group(rows)) == contents(one_group(padded_rows()))


@pytest.mark.parametrize("all_valid", [False, True])
def test_a_group_shares_no_memory_with_its_rows(all_valid: bool) -> None:
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
        plane.zero_()
    assert contents(group) == before


def attended(first: list[int], second: list[int]) -> dict[str, Any]:
    return {"attention_mask": torch.tensor([first, second])}


NOT_FINITE = torch.full((2, 3), torch.nan)
REFUSED_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"old_log_probs": None}, "old_log_probs is missing"),
    ({"old_log_probs": NOT_FINITE}, "old_log_probs holds NaN or infinity"),
    ({"old_log_probs": torch.full((2, 3), -torch.inf)}, "old_log_probs holds NaN or infinity"),
    ({"ref_log_prob": NOT_FINITE}, "ref_log_probs holds NaN or infinity"),
    ({"advantages": NOT_FINITE}, "advantages holds NaN or infinity"),
    ({"rewards": torch.tensor([0.0, torch.nan])}, "rewards holds NaN or infinity"),
    ({"response_mask": torch.zeros(2, 3)}, "response_mask holds no valid token"),
    ({"response_mask": torch.ones(2, 3)}, "response_mask covers padding"),
    ({"prompts": torch.tensor([[0, 11, 12, 13], [0, 11, 12, 14]])}, "its rows have different prompts"),
    (attended([0, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0, 0]), "its rows have different prompts"),
    (attended([0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]), "its rows have different prompts"),
    (attended([1, 1, 1, 0, 1, 1, 1], [1, 1, 1, 0, 1, 0, 0]), "prompts are not left-padded"),
    (attended([0, 1, 0, 1, 1, 1, 1], [0, 1, 0, 1, 1, 0, 0]), "prompts are not left-padded"),
    (attended([0, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0, 1]), "responses are not right-padded"),
    (attended([0, 1, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 0, 0]), "responses are not right-padded"),
]
REFUSED_SHAPES: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: None}, f"{name} is missing")
        for name in ("prompts", "responses", "attention_mask", "response_mask", "advantages", "rewards")
    ),
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
REFUSED = [(change, f"group of prompt 7 at step 4: {reason}") for change, reason in REFUSED_ROWS]
REFUSED += [(change, f"groups of step 4: {reason}") for change, reason in REFUSED_SHAPES]


@pytest.mark.parametrize(("change", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_rows_that_are_no_whole_groups_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=rf"^rollout {re.escape(reason)}(,|$)"):
        one_group({**padded_rows(), **change})
    without = {name: plane for name, plane in (padded_rows() | change).items() if plane is not None}
    with pytest.raises(ValueError, match=re.escape(reason)):
        one_group(without)


@pytest.mark.parametrize("row", range(4))
def test_a_refusal_names_the_group_at_fault(row: int) -> None:
    prompt = IDENTITIES[row // 2].prompt_index
    for name, column, value, reason in [
        ("prompts", 2, 99, "its rows have different prompts"),
        ("response_mask", -1, 1, "response_mask covers padding"),
        ("advantages", 0, torch.nan, "advantages holds NaN or infinity"),
    ]:
        rows = padded_twice()
        rows["attention_mask"][row, -1] = 0
        rows["response_mask"][row, -1] = 0
        rows[name][row, column] = value
        with pytest.raises(ValueError, match=rf"^rollout group of prompt {prompt} at step 4: {reason}$"):
            unpad_rows(IDENTITIES, 4, rows)


@pytest.mark.parametrize("count", [2, 0])
def test_rows_that_do_not_divide_into_groups_are_refused(count: int) -> None:
    rows = {name: plane[:3] for name, plane in padded_twice().items()}
    with pytest.raises(
        ValueError, match=rf"^rollout groups of step 4: 3 rows cannot be {count} groups of eq"
    ):
        unpad_rows(IDENTITIES[:count], 4, rows)
