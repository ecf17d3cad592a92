"""verl's batch to rollout groups and back; and V1's queue of a step as V0's batch of the same rows."""

import numpy as np
import pytest
import torch
import transfer_queue
from tensordict import NonTensorStack, TensorDict
from verl import DataProto
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import left_right_2_no_padding

from recipe.rerule.replay import ReplayConfig
from recipe.rerule.training import batches_v1
from recipe.rerule.training.batches import Rollouts, read, replay_batch, weigh_sides
from tests.test_update_actor import batch_of
from tests.training.made import Queue, objects

PAD = 0


@pytest.fixture
def batch() -> DataProto:
    """Two prompts (indices 7 forget/qa and 9 retain/fb) x 2 rollouts, rows interleaved as after balancing.

    Prompts are 2 and 3 tokens, responses 1 to 3 tokens.
    """
    prompts = torch.tensor([[0, 11, 12], [21, 22, 23], [0, 11, 12], [21, 22, 23]])
    responses = torch.tensor([[31, 0, 0], [32, 33, 0], [34, 35, 36], [37, 0, 0]])
    attention = torch.cat([prompts != PAD, responses != PAD], dim=1).long()
    mask = (responses != PAD).long()
    values = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    scores = torch.zeros(4, 3)
    for row, score in enumerate([0.5, 1.0, 0.0, 0.5]):
        scores[row, int(mask[row].sum()) - 1] = score
    infos = [{"index": 7, "mode": "qa"}, {"index": 9, "mode": "fb"}] * 2
    return DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "input_ids": torch.cat([prompts, responses], dim=1),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
            "response_mask": mask,
            "old_log_probs": -values * mask,
            "ref_log_prob": -values * mask - 1,
            "advantages": values * mask + 0.5,
            "token_level_scores": scores,
            # A KL penalty in the reward must not reach the stored rewards.
            "token_level_rewards": scores - 5,
        },
        non_tensors={
            "uid": objects(["a", "b"] * 2),
            "reward_model": objects([{"ground_truth": {"type": side}} for side in ["forget", "retain"] * 2]),
            "extra_info": objects([{**info, "subject": "Ada", "query": "Who?"} for info in infos]),
            "refused": np.array([1.0, 0.0, 0.0, 0.0]),
        },
    )


def test_workers_get_the_inputs_of_multi_modal_prompts_and_no_labels(batch: DataProto) -> None:
    for inputs, columns in (([{}] * 4, []), ([{}, {"pixels": 1}, {}, {}], ["multi_modal_inputs"])):
        batch.non_tensor_batch["multi_modal_inputs"] = objects(inputs)
        sent = read(batch, step=1, group_size=2, limit=3).sent
        assert list(sent.non_tensor_batch) == columns
        assert set(sent.batch.keys()) == set(batch.batch.keys())


def test_groups_hold_the_rows_of_their_prompt(batch: DataProto) -> None:
    """Their rewards are raw scores. They do not follow later changes of the batch."""
    rollouts = read(batch, step=3, group_size=2, limit=3)
    for name in ("advantages", "responses", "token_level_scores"):
        batch.batch[name].zero_()
    forget, retain = rollouts.groups
    assert (forget.prompt_index, forget.side, forget.mode, forget.step) == (7, "forget", "qa", 3)
    assert (retain.prompt_index, retain.side, retain.mode) == (9, "retain", "fb")
    assert forget.prompt_ids.tolist() == [11, 12]
    assert forget.response_ids.tolist() == [31, 34, 35, 36]
    assert forget.lengths.tolist() == [1, 3]
    assert forget.old_log_probs.tolist() == [0.0, -6.0, -7.0, -8.0]
    assert retain.advantages.tolist() == [3.5, 4.5, 9.5]
    assert (forget.rewards.tolist(), retain.rewards.tolist()) == ([0.5, 0.0], [1.0, 0.5])
    assert {index: (label.side, label.query) for index, label in rollouts.prompts.items()} == {
        7: ("forget", "Who?"),
        9: ("retain", "Who?"),
    }


def test_a_prompt_without_all_its_responses_is_refused(batch: DataProto) -> None:
    batch.non_tensor_batch["uid"][3] = "c"
    with pytest.raises(ValueError, match=r"prompt 9 has 1 responses at step 2 where rollout.n is 2"):
        read(batch, step=2, group_size=2, limit=3)


@pytest.mark.parametrize(("masked", "left"), [([0], [7, 9]), ([0, 2], [9]), ([0, 1, 2, 3], [])])
def test_a_prompt_without_a_token_to_train_on_is_left_out(
    masked: list[int], left: list[int], batch: DataProto
) -> None:
    """Rejection sampling of verl's rollout correction masks whole responses."""
    batch.batch["response_mask"][masked] = 0
    found = read(batch, step=1, group_size=2, limit=3)
    assert [group.prompt_index for group in found.groups] == [*found.prompts] == left
    assert found.short == 2 - len(left)


def test_replay_batch_equals_verls_own_layout(batch: DataProto) -> None:
    """Groups drawn again give the tensors verl makes of the same rows, whatever the padding was."""
    groups = read(batch, step=1, group_size=2, limit=3).groups
    config = ReplayConfig()
    data = replay_batch(groups, config, pad_token_id=PAD, temperature=0.7)
    order = torch.tensor([0, 2, 1, 3])
    expected = left_right_2_no_padding(batch.batch[order].clone())
    for name in ("input_ids", "position_ids"):
        assert torch.equal(data[name].values(), expected[name].values())
        assert torch.equal(data[name].offsets(), expected[name].offsets())
    assert torch.equal(data["responses"], expected["responses"])
    assert torch.equal(data["response_mask"], expected["response_mask"])
    valid = expected["response_mask"].bool()
    for name in ("old_log_probs", "ref_log_prob", "advantages"):
        assert torch.equal(data[name][valid], expected[name][valid]), name
    assert tu.get(data, "replay_config") == config
    assert tu.get(data, "temperature") == 0.7
    assert tu.get(data, "global_batch_size") == 4
    assert tu.get(data, "global_token_num") == [3, 5, 5, 4]


def test_rows_are_dealt_so_that_ranks_have_as_many_tokens(batch: DataProto) -> None:
    """Rows of 3, 5, 5 and 4 tokens in group order: 8 and 9 on two ranks is the closest."""
    groups = read(batch, step=1, group_size=2, limit=3).groups
    alone, dealt = (replay_batch(groups, ReplayConfig(), PAD, 0.7, ranks) for ranks in (1, 2))
    tokens = tu.get(dealt, "global_token_num")
    assert sorted((sum(tokens[:2]), sum(tokens[2:]))) == [8, 9]
    ids = [[row.tolist() for row in data["input_ids"].unbind()] for data in (alone, dealt)]
    assert [len(row) for row in ids[1]] == tokens
    order = [ids[0].index(row) for row in ids[1]]
    assert sorted(order) == [0, 1, 2, 3]
    assert torch.equal(dealt["advantages"], alone["advantages"][order])


def test_means_of_a_step_by_side(batch: DataProto) -> None:
    """Rows: forget .5, retain 1, forget 0, retain .5, with 1, 2, 3 and 1 tokens, of which 3 is the limit."""
    batch.non_tensor_batch |= {
        "keyword": np.array([1.0, 1.0, 1.0, 0.0]),
        "right": np.array([0.0, 1.0, 0.0, 0.0]),
        "leaked": np.array([0.0, 0.0, 1.0, 0.0]),
        "empty": np.array([0.0, 0.0, 0.0, 1.0]),
    }
    expected = {
        "forget": {"cut": 0.5, "empty": 0.0, "leaked": 0.5, "mixed": 1.0, "named": 0.5, "refused": 0.5},
        "retain": {"cut": 0.0, "empty": 0.5, "right": 0.5, "mixed": 1.0, "named": 0.5, "refused": 0.0},
    }
    expected["forget"] |= {"reward": 0.25, "tokens": 2.0}
    expected["retain"] |= {"reward": 0.75, "tokens": 1.5}
    by_side = {f"{name}/{side}/mean": x for side, means in expected.items() for name, x in means.items()}
    by_mode = {"reward/forget/qa/mean": 0.25, "reward/retain/fb/mean": 0.75}
    found = read(batch, step=1, group_size=2, limit=3).side_metrics
    assert found == by_side | by_mode | {"mixed/mean": 1.0}


def test_a_group_is_mixed_where_its_rewards_differ(batch: DataProto) -> None:
    batch.batch["token_level_scores"][2, 2] = 0.5  # both responses of the forget prompt earn .5
    metrics = read(batch, step=1, group_size=2, limit=4).side_metrics
    assert [metrics[f"mixed/{part}mean"] for part in ("forget/", "retain/", "")] == [0.0, 1.0, 0.5]
    assert metrics["cut/forget/mean"] == 0.0


def test_the_side_that_is_refused_too_often_weighs_more(batch: DataProto) -> None:
    """Retain rows 1 and 3 err with 1 and 0.5, forget rows 0 and 2 with 0.5 and 0.5: r = exp(4 * 0.25) = e."""
    batch.non_tensor_batch["refused"] = np.array([0.5, 1.0, 0.5, 0.5])
    before = batch.batch["advantages"].clone()
    assert weigh_sides(batch) == {"sides/retain_weight": pytest.approx(1.4621171572600098)}
    forget, retain = 0.5378828427399902, 1.4621171572600098
    expected = before * torch.tensor([forget, retain, forget, retain])[:, None]
    torch.testing.assert_close(batch.batch["advantages"], expected)
    assert batch.batch["advantages"].dtype == torch.float32


def test_one_side_alone_weighs_one_and_a_reward_without_refusals_cannot_weigh_sides(batch: DataProto) -> None:
    batch.non_tensor_batch |= {"refused": np.ones(4), "right": np.ones(4)}
    forget = batch[[0, 2]]
    before = forget.batch["advantages"].clone()
    assert weigh_sides(forget) == {}
    assert read(batch, step=1, group_size=2, limit=3).side_metrics["right/retain/mean"] == 0.0
    assert torch.equal(forget.batch["advantages"], before)
    del batch.non_tensor_batch["refused"]
    with pytest.raises(ValueError, match=r"sides.weights=by_error needs a reward function"):
        weigh_sides(batch)
    metrics = read(batch, step=1, group_size=2, limit=3).side_metrics
    assert [name for name in metrics if name.startswith("refused")] == []
    assert metrics["reward/forget/mean"] == 0.25


def test_a_prompt_that_lost_a_response_counts_in_metrics_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, of_v0 = Queue(batch_of(3), seed=1), read(batch_of(3), 3, 4, 8)
    monkeypatch.setattr(transfer_queue, "kv_batch_get", queue.get)

    def without(*keys: str) -> Rollouts:
        queue.without(*keys)
        return read(batches_v1.fetch(queue.meta, queue.submitted), 3, 4, 8, strict=False)

    uid = next(iter(queue.submitted))
    found = without(f"{uid}_0_0")
    assert found.short == 1
    left = [group.prompt_index for group in of_v0.groups[1:]]
    assert [group.prompt_index for group in found.groups] == [*found.prompts] == left
    assert torch.equal(found.groups[0].old_log_probs, of_v0.groups[1].old_log_probs)
    keys = [f"{uid}_0_0" for uid in queue.submitted]
    found = without(*keys)
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


def test_the_batch_of_the_queue_is_padded_as_v0s() -> None:
    """Prompts on the left, all else on the right; by hand. A KL penalty leaves the raw scores."""
    columns = {
        "prompts": [[5], [6, 7]],
        "responses": [[1, 2], [3]],
        "response_mask": [[1, 1], [1]],
        "old_log_probs": [[-0.5, -1.5], [-2.5]],
        "advantages": [[1.0, 1.0], [-1.0]],
        "rm_scores": [[0.0, 0.75], [0.25]],
        "token_level_rewards": [[-5.0, -4.25], [-4.75]],
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
        "token_level_rewards": [[-5.0, -4.25], [-4.75, 0.0]],
    }
    assert {name: list(values) for name, values in found.non_tensor_batch.items()} == {
        "uid": ["a", "b"],
        "reward_model": ["r0", "r1"],
        "extra_info": ["i0", "i1"],
        "refused": [1.0, 0.0],
    }
