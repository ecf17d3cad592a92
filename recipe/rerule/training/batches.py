"""From verl's batches to rollout groups and back: the place that knows both layouts (V1's: `batches_v1`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import left_right_2_no_padding

from recipe.rerule.replay import PromptIdentity, ReplayConfig, RolloutGroup, pad_groups, unpad_rows

_REPLAYED = (
    "prompts",
    "responses",
    "attention_mask",
    "response_mask",
    "old_log_probs",
    "advantages",
    "ref_log_prob",
)
"""What a rollout group keeps of verl's rows."""


@dataclass(frozen=True)
class PromptLabel:
    """What the data contract says of a row's prompt."""

    index: int
    side: str
    mode: str
    subject: str
    query: str


@dataclass(frozen=True)
class Rollouts:
    """One training batch, read once.

    groups: with copies of the rows, in order of first appearance.
    prompts: the label of each prompt, by its index.
    reward_metrics: see `reward_metrics`.
    sent: what the workers get of the batch, see `for_workers`.
    """

    groups: list[RolloutGroup]
    prompts: dict[int, PromptLabel]
    reward_metrics: dict[str, float]
    sent: DataProto


def read(batch: DataProto, step: int, group_size: int) -> Rollouts:
    """Read one training batch.

    Args:
        batch: as `_update_actor` gets it, rows in any order.
        step: the training step.
        group_size: rows every group must have (`rollout.n`).

    Raises:
        ValueError: a group has another size, or lacks what replay needs.
    """
    labels = _labels(batch)
    rewards = _raw_rewards(batch)
    return Rollouts(
        groups=_rollout_groups(batch, labels, rewards, step, group_size),
        prompts={label.index: label for label in labels},
        reward_metrics=reward_metrics(labels, rewards.tolist(), batch.non_tensor_batch.get("refused")),
        sent=for_workers(batch),
    )


def rewards_of(batch: DataProto) -> dict[str, float]:
    """`reward_metrics` of all rows of a batch, whatever groups they form."""
    refused = batch.non_tensor_batch.get("refused")
    return reward_metrics(_labels(batch), _raw_rewards(batch).tolist(), refused)


def _raw_rewards(batch: DataProto) -> torch.Tensor:
    """[rows], what the reward function gave, before any KL penalty."""
    return batch.batch["token_level_scores"].sum(dim=-1)


def _labels(batch: DataProto) -> list[PromptLabel]:
    """Label of every row of a batch, from the data set's `reward_model` and `extra_info` columns."""
    rewards, infos = batch.non_tensor_batch["reward_model"], batch.non_tensor_batch["extra_info"]
    return [
        PromptLabel(
            int(info["index"]), reward["ground_truth"]["type"], info["mode"], info["subject"], info["query"]
        )
        for reward, info in zip(rewards, infos, strict=True)
    ]


def for_workers(batch: DataProto) -> DataProto:
    """The batch without the columns that no worker reads, sharing its tensors and `meta_info`.

    verl wraps, sends and unwraps every value of every column (the data set's labels, the reward's parts) with
    each call to the workers. Only the inputs of multi-modal prompts are used there.
    """
    inputs = batch.non_tensor_batch.get("multi_modal_inputs")
    used = ["multi_modal_inputs"] if inputs is not None and any(inputs) else []
    return batch.select(non_tensor_batch_keys=used)


def rows_of_groups(uids: Sequence[str] | np.ndarray) -> list[list[int]]:
    """Row numbers of each rollout group: rows that share `uid`, groups in order of first appearance."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, uid in enumerate(uids):
        rows[uid].append(row)
    return list(rows.values())


def _rollout_groups(
    batch: DataProto, labels: Sequence[PromptLabel], rewards: torch.Tensor, step: int, group_size: int
) -> list[RolloutGroup]:
    """The rollout groups of a batch whose rows have these labels and rewards."""
    groups = rows_of_groups(batch.non_tensor_batch["uid"])
    firsts = [labels[rows[0]] for rows in groups]
    for label, rows in zip(firsts, groups, strict=True):
        if len(rows) != group_size:
            raise ValueError(
                f"prompt {label.index} has {len(rows)} responses at step {step} where rollout.n is "
                f"{group_size}; replay needs groups of equal size"
            )
    order = torch.tensor([row for rows in groups for row in rows])
    given = {name: batch.batch.get(name, None) for name in _REPLAYED}
    planes = {name: plane[order] for name, plane in given.items() if plane is not None}
    identities = [PromptIdentity(label.index, label.side, label.mode) for label in firsts]
    return unpad_rows(identities, step, {**planes, "rewards": rewards[order]})


def replay_batch(
    groups: Sequence[RolloutGroup], config: ReplayConfig, pad_token_id: int, temperature: float
) -> TensorDict:
    """The rows of drawn groups as verl's workers take them (no padding), in group order.

    `global_batch_size` and `mini_batch_size` are all rows: one optimiser step over the whole batch.
    """
    rows = pad_groups(groups, pad_token_id)
    token_num = rows["attention_mask"].sum(dim=-1).tolist()
    del rows["rewards"]
    data = left_right_2_no_padding(tu.get_tensordict(rows))
    tu.assign_non_tensor_data(data, "replay_config", config)
    tu.assign_non_tensor_data(data, "global_token_num", token_num)
    tu.assign_non_tensor(
        data,
        temperature=temperature,
        global_batch_size=len(token_num),
        calculate_entropy=False,
        compute_loss=True,
    )
    return data


def reward_metrics(
    labels: Sequence[PromptLabel], rewards: Sequence[float], refused: Sequence[Any] | None
) -> dict[str, float]:
    """Mean raw reward by side and by side and mode, and mean of the reward's `refused` by side.

    All are of each row; `refused` None where the reward has none.
    Keys: reward/{side}/mean, reward/{side}/{mode}/mean, refused/{side}/mean.
    """
    values: dict[str, list[Any]] = defaultdict(list)
    for row, label in enumerate(labels):
        values[f"reward/{label.side}/mean"].append(rewards[row])
        values[f"reward/{label.side}/{label.mode}/mean"].append(rewards[row])
        if refused is not None:
            values[f"refused/{label.side}/mean"].append(refused[row])
    return {name: float(np.mean(of)) for name, of in sorted(values.items())}
