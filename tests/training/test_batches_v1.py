"""What V1's queue holds of a step becomes V0's batch of the same rows."""

from __future__ import annotations

import pytest
import torch
import transfer_queue
from tensordict import NonTensorStack, TensorDict

from recipe.rerule.training import batches, batches_v1
from recipe.rerule.training.batches import Rollouts
from tests.test_update_actor import batch_of
from tests.training.made import Queue

STEP, GROUP_SIZE, LIMIT = 3, 4, 8


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    made = Queue(batch_of(STEP), seed=1)
    monkeypatch.setattr(transfer_queue, "kv_batch_get", made.get)
    return made


@pytest.fixture
def of_v0() -> Rollouts:
    return batches.read(batch_of(STEP), STEP, GROUP_SIZE, LIMIT)


def read(queue: Queue) -> Rollouts:
    rows = batches_v1.fetch(queue.meta, queue.submitted)
    return batches.read(rows, STEP, GROUP_SIZE, LIMIT, strict=False)


def test_a_prompt_that_lost_a_response_is_counted_and_not_stored(queue: Queue, of_v0: Rollouts) -> None:
    uid = next(iter(queue.submitted))
    found = read(queue.without(f"{uid}_1_0"))
    assert found.short == 1
    left = [group.prompt_index for group in of_v0.groups[1:]]
    assert [group.prompt_index for group in found.groups] == [*found.prompts] == left
    assert torch.equal(found.groups[0].old_log_probs, of_v0.groups[1].old_log_probs)


def test_rewards_of_prompts_that_lost_responses_count_in_the_metrics(queue: Queue, of_v0: Rollouts) -> None:
    keys = [f"{uid}_0_0" for uid in queue.submitted]
    found = read(queue.without(*keys))
    assert (found.groups, found.prompts, found.short) == ([], {}, len(keys))
    for side in ("forget", "retain"):
        left = [float(reward) for one in of_v0.groups if one.side == side for reward in one.rewards[1:]]
        assert found.side_metrics[f"reward/{side}/mean"] == pytest.approx(sum(left) / len(left))


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


@pytest.mark.parametrize("penalised", [False, True])
def test_the_batch_is_padded_as_v0s(penalised: bool) -> None:
    """Prompts on the left, all else on the right; by hand. A KL penalty leaves the raw scores."""
    columns = {
        "prompts": [[5], [6, 7]],
        "responses": [[1, 2], [3]],
        "response_mask": [[1, 1], [1]],
        "old_log_probs": [[-0.5, -1.5], [-2.5]],
        "advantages": [[1.0, 1.0], [-1.0]],
        "rm_scores": [[0.0, 0.75], [0.25]],
        **({"token_level_rewards": [[-5.0, -4.25], [-4.75]]} if penalised else {}),
    }
    data = TensorDict({}, batch_size=[2])
    for name, rows in columns.items():
        tensors = [torch.tensor(row) for row in rows]
        data[name] = torch.nested.as_nested_tensor(tensors, layout=torch.jagged)
    parts = [{"refused": 1.0, "own": 2}, {"refused": 0.0}]
    data["extra_fields"] = NonTensorStack(*({"reward_extra_info": of_row} for of_row in parts))
    data["reward_model"], data["extra_info"] = NonTensorStack("r0", "r1"), NonTensorStack("i0", "i1")
    found = batches_v1.as_v0(["a_0_0", "b_3_0"], data)
    assert {name: plane.tolist() for name, plane in found.batch.items()} == {
        "prompts": [[0, 5], [6, 7]],
        "responses": [[1, 2], [3, 0]],
        "attention_mask": [[0, 1, 1, 1], [1, 1, 1, 0]],
        "response_mask": [[1, 1], [1, 0]],
        "old_log_probs": [[-0.5, -1.5], [-2.5, 0.0]],
        "advantages": [[1.0, 1.0], [-1.0, 0.0]],
        "token_level_scores": [[0.0, 0.75], [0.25, 0.0]],
        "token_level_rewards": [[-5.0, -4.25], [-4.75, 0.0]] if penalised else [[0.0, 0.75], [0.25, 0.0]],
    }
    assert {name: list(values) for name, values in found.non_tensor_batch.items()} == {
        "uid": ["a", "b"],
        "reward_model": ["r0", "r1"],
        "extra_info": ["i0", "i1"],
        "refused": [1.0, 0.0],
    }
