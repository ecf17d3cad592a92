"""From verl's batches to rollout groups and back: the only place that knows both layouts."""

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

from recipe.rerule.replay import PromptIdentity, ReplayConfig, RolloutGroup, collate, uncollate


@dataclass(frozen=True)
class PromptLabel:
    """What the data contract says of a row's prompt."""

    index: int
    side: str
    mode: str
    subject: str
    query: str


def labels(batch: DataProto) -> list[PromptLabel]:
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


def rollout_groups(batch: DataProto, step: int, group_size: int) -> list[RolloutGroup]:
    """The rollout groups of one training batch, with copies of its rows.

    Args:
        batch: as `_update_actor` gets it, rows in any order.
        step: the training step.
        group_size: rows every group must have (`rollout.n`).

    Raises:
        ValueError: a group has another size, or lacks what replay needs.
    """
    groups = rows_of_groups(batch.non_tensor_batch["uid"])
    identities = _identities(batch, groups)
    for identity, rows in zip(identities, groups, strict=True):
        if len(rows) != group_size:
            raise ValueError(
                f"prompt {identity.prompt_index} has {len(rows)} responses at step {step} where rollout.n is "
                f"{group_size}; replay needs groups of equal size"
            )
    order = torch.tensor([row for rows in groups for row in rows])

    def of(name: str) -> Any:
        value = batch.batch.get(name, None)
        return None if value is None else value[order]

    return uncollate(
        identities,
        step,
        prompts=of("prompts"),
        responses=of("responses"),
        attention_mask=of("attention_mask"),
        response_mask=of("response_mask"),
        old_log_probs=of("old_log_probs"),
        ref_log_probs=of("ref_log_prob"),
        advantages=of("advantages"),
        # Raw scores, before any KL penalty: the threshold is over what the reward function gave.
        rewards=of("token_level_scores").sum(dim=-1),
    )


def _identities(batch: DataProto, groups: list[list[int]]) -> list[PromptIdentity]:
    label_of = labels(batch)
    firsts = [label_of[rows[0]] for rows in groups]
    return [PromptIdentity(label.index, label.side, label.mode) for label in firsts]


def replay_batch(
    groups: Sequence[RolloutGroup], config: ReplayConfig, pad_token_id: int, temperature: float
) -> TensorDict:
    """The rows of drawn groups as verl's workers take them (no padding), in group order.

    `global_batch_size` and `mini_batch_size` are all rows: one optimiser step over the whole batch.
    """
    rows = collate(groups, pad_token_id)
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


def reward_metrics(batch: DataProto) -> dict[str, float]:
    """Mean raw reward by side and by side and mode, and mean of the reward's `refused` by side.

    Keys: reward/{side}/mean, reward/{side}/{mode}/mean, refused/{side}/mean.
    """
    scores = batch.batch["token_level_scores"].sum(dim=-1).tolist()
    refused = batch.non_tensor_batch.get("refused")
    values: dict[str, list[Any]] = defaultdict(list)
    for row, label in enumerate(labels(batch)):
        values[f"reward/{label.side}/mean"].append(scores[row])
        values[f"reward/{label.side}/{label.mode}/mean"].append(scores[row])
        if refused is not None:
            values[f"refused/{label.side}/mean"].append(refused[row])
    return {name: float(np.mean(of)) for name, of in sorted(values.items())}
