"""What V1's queue holds of a step becomes V0's batch of the same rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transfer_queue
from tensordict import NonTensorStack, TensorDict

from recipe.rerule.training import batches, batches_v1
from tests.test_update_actor import batch_of
from tests.training.queued import Queue

STEP, GROUP_SIZE, LIMIT = 3, 4, 8


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    made = Queue(batch_of(STEP), seed=1)
    monkeypatch.setattr(transfer_queue, "kv_batch_get", made.get)
    return made


def fetched(queue: Queue) -> Any:
    return batches_v1.fetch(queue.meta, queue.submitted)


def test_groups_are_those_of_v0_bit_by_bit_whatever_the_order_of_arrival(queue: Queue) -> None:
    expected, rows = batches.read(batch_of(STEP), STEP, GROUP_SIZE, LIMIT), fetched(queue)
    assert len(rows) == len(queue.meta.keys) - 2  # without those that fill up the batch
    assert not [uid for uid in rows.non_tensor_batch["uid"] if uid.startswith("pad")]
    found, short = batches_v1.read(fetched(queue), STEP, GROUP_SIZE, LIMIT)
    assert short == 0
    assert len(found.groups) == len(expected.groups) > 1
    for one, other in zip(found.groups, expected.groups, strict=True):
        assert (one.prompt_index, one.side, one.mode, one.step) == (
            *(other.prompt_index, other.side, other.mode),
            STEP,
        )
        planes, others = one.planes(), other.planes()
        assert set(planes) == set(others)
        for name in planes:
            assert planes[name].dtype == others[name].dtype, name
            assert torch.equal(planes[name], others[name]), name
    assert found.prompts == expected.prompts
    assert found.side_metrics == expected.side_metrics


def test_a_prompt_that_lost_a_response_is_counted_and_not_stored(queue: Queue) -> None:
    uid = next(iter(queue.submitted))
    queue.without(f"{uid}_1_0")
    whole = batches.read(batch_of(STEP), STEP, GROUP_SIZE, LIMIT)
    found, short = batches_v1.read(fetched(queue), STEP, GROUP_SIZE, LIMIT)
    assert short == 1
    assert [group.prompt_index for group in found.groups] == [g.prompt_index for g in whole.groups[1:]]
    assert torch.equal(found.groups[0].old_log_probs, whole.groups[1].old_log_probs)


def test_rewards_of_prompts_that_lost_responses_count_in_the_metrics(queue: Queue) -> None:
    batch = batch_of(STEP)
    keys = [f"{uid}_0_0" for uid in queue.submitted]
    queue.without(*keys)
    found, short = batches_v1.read(fetched(queue), STEP, GROUP_SIZE, LIMIT)
    assert (found.groups, short) == ([], len(keys))
    rewards: dict[str, list[float]] = {}
    seen: set[str] = set()
    for row, uid in enumerate(batch.non_tensor_batch["uid"]):
        if uid in seen:
            side = batch.non_tensor_batch["reward_model"][row]["ground_truth"]["type"]
            rewards.setdefault(side, []).append(float(batch.batch["token_level_scores"][row].sum()))
        seen.add(uid)
    for side, values in rewards.items():
        assert found.side_metrics[f"reward/{side}/mean"] == pytest.approx(sum(values) / len(values))


@pytest.mark.parametrize(
    ("keys", "submitted", "ordered"),
    [
        ("a_10_0 a_2_0 a_1_0 a_0_0 a_11_0", {"a": 0}, "a_0_0 a_1_0 a_2_0 a_10_0 a_11_0"),
        ("c_0_0 a_0_0 unknown_0_0 b_0_0", {"b": 0, "c": 1, "a": 2}, "b_0_0 c_0_0 a_0_0 unknown_0_0"),
    ],
)
def test_rows_are_in_the_order_of_submission_and_of_their_numbers(
    keys: str, submitted: dict[str, int], ordered: str
) -> None:
    assert batches_v1.ordered_keys(keys.split(), [{}] * len(keys.split()), submitted) == ordered.split()


def test_the_batch_is_padded_as_v0s() -> None:
    """Prompts on the left, all else on the right; by hand."""

    def jagged(*rows: list[float]) -> torch.Tensor:
        return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)

    columns = {
        "prompts": jagged([5], [6, 7]),
        "responses": jagged([1, 2], [3]),
        "response_mask": jagged([1, 1], [1]),
        "old_log_probs": jagged([-0.5, -1.5], [-2.5]),
        "advantages": jagged([1.0, 1.0], [-1.0]),
        "rm_scores": jagged([0.0, 0.75], [0.25]),
    }
    data = TensorDict(columns, batch_size=[2])
    for name, values in {"reward_model": ["r0", "r1"], "extra_info": ["i0", "i1"]}.items():
        data[name] = NonTensorStack(*values)
    data["extra_fields"] = NonTensorStack(
        {"reward_extra_info": {"refused": 1.0, "own": 2}}, {"reward_extra_info": {"refused": 0.0}}
    )
    found = batches_v1.as_v0(["a_0_0", "b_3_0"], data)
    expected = {
        "prompts": [[0, 5], [6, 7]],
        "responses": [[1, 2], [3, 0]],
        "attention_mask": [[0, 1, 1, 1], [1, 1, 1, 0]],
        "response_mask": [[1, 1], [1, 0]],
        "old_log_probs": [[-0.5, -1.5], [-2.5, 0.0]],
        "advantages": [[1.0, 1.0], [-1.0, 0.0]],
        "token_level_scores": [[0.0, 0.75], [0.25, 0.0]],
        "token_level_rewards": [[0.0, 0.75], [0.25, 0.0]],
    }
    assert {name: plane.tolist() for name, plane in found.batch.items()} == expected
    labels = {name: list(values) for name, values in found.non_tensor_batch.items()}
    assert labels == {
        "uid": ["a", "b"],
        "reward_model": ["r0", "r1"],
        "extra_info": ["i0", "i1"],
        "refused": [1.0, 0.0],
    }


def test_kl_in_the_reward_does_not_change_the_raw_scores(queue: Queue) -> None:
    rows = fetched(queue)
    penalised = queue.get([*queue.rows], "train", ["rm_scores"])["rm_scores"] - 5
    data = queue.get([*queue.rows], "train", list(batches_v1.COLUMNS))
    data["token_level_rewards"] = penalised
    found = batches_v1.as_v0([*queue.rows], data)
    assert torch.equal(found.batch["token_level_scores"].sum(), rows.batch["token_level_scores"].sum())
    assert not torch.equal(found.batch["token_level_rewards"], found.batch["token_level_scores"])
