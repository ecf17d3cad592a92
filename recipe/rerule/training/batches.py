"""From verl's batches to rollout groups and back: the place that knows both layouts (V1's: `batches_v1`)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions
from verl.workers.utils.padding import left_right_2_no_padding

from recipe.rerule.replay import PromptIdentity, ReplayConfig, RolloutGroup, pad_groups, unpad_rows
from recipe.rerule.replay.group import SIDES
from recipe.rerule.training.health import answers_alone

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


_SHARES = {
    "refused": SIDES,
    "right": ("retain",),
    "leaked": ("forget",),
    "leaked_thought": ("forget",),
    "empty": SIDES,
}
"""Parts of the reward that are 0 or 1, each with the sides on which it says something."""


STRENGTH = 4.0
"""Of `weigh_sides`: a side that errs 0.17 more often than the other weighs twice as much."""


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
    prompts: the label of each group's prompt, by its index.
    side_metrics: means by side over all rows, whatever groups they form. Of each side: the raw reward,
        reward/{side}/mean and reward/{side}/{mode}/mean; shares of responses refused/{side}/mean,
        named/{side}/mean (name the target without refusing), empty/{side}/mean and cut/{side}/mean (as long
        as the limit); tokens/{side}/mean (of a response); mixed/{side}/mean, the share of groups whose
        rewards differ. Of one side: right/retain/mean (and no refusal), leaked/forget/mean and
        leaked_thought/forget/mean. mixed/mean is of all groups. What the reward function does not return is
        left out.
    sent: what the workers get of the batch, see `for_workers`.
    short: how many groups were left out because they have another number of rows, or no token to train on.
    """

    groups: list[RolloutGroup]
    prompts: dict[int, PromptLabel]
    side_metrics: dict[str, float]
    sent: DataProto
    short: int


def read(batch: DataProto, step: int, group_size: int, limit: int, strict: bool = True) -> Rollouts:
    """Read one training batch.

    Args:
        batch: as `_update_actor` gets it, rows in any order.
        step: the training step.
        group_size: rows of a whole group (`rollout.n`).
        limit: tokens that a response may have (`data.max_response_length`).
        strict: whether a group of another size is an error; else it is left out of the groups and counted.

    Raises ValueError: a group has another size, or lacks what replay needs.
    """
    labels = _labels(batch)
    # [rows], what the reward function gave, before any KL penalty.
    rewards = batch.batch["token_level_scores"].sum(dim=-1)
    by_uid: dict[str, list[int]] = defaultdict(list)  # in order of first appearance
    for row, uid in enumerate(batch.non_tensor_batch["uid"]):
        by_uid[uid].append(row)
    # Rejection sampling (algorithm.rollout_correction) masks whole responses, and can mask all of a prompt.
    trained = batch.batch["response_mask"].bool().any(dim=-1).tolist()
    groups, whole = list(by_uid.values()), []
    for rows in groups:
        if len(rows) == group_size:
            if any(trained[row] for row in rows):
                whole.append(rows)
        elif strict:
            raise ValueError(
                f"prompt {labels[rows[0]].index} has {len(rows)} responses at step {step} where rollout.n is "
                f"{group_size}; replay needs groups of equal size"
            )
    firsts = [labels[rows[0]] for rows in whole]
    order = torch.tensor([row for rows in whole for row in rows])
    given = {name: batch.batch.get(name, None) for name in _REPLAYED} | {"rewards": rewards}
    identities = [PromptIdentity(label.index, label.side, label.mode) for label in firsts]
    made = []
    if whole:
        planes = {name: plane[order] for name, plane in given.items() if plane is not None}
        made = unpad_rows(identities, step, planes)
    return Rollouts(
        groups=made,
        prompts={label.index: label for label in firsts},
        side_metrics=_side_metrics(batch, groups, labels, rewards, limit),
        sent=for_workers(batch),
        short=len(groups) - len(whole),
    )


def _labels(batch: DataProto) -> list[PromptLabel]:
    """Label of every row of a batch, from the data set's `reward_model` and `extra_info` columns."""
    rewards, infos = batch.non_tensor_batch["reward_model"], batch.non_tensor_batch["extra_info"]
    return [
        PromptLabel(
            int(info["index"]), reward["ground_truth"]["type"], info["mode"], info["subject"], info["query"]
        )
        for reward, info in zip(rewards, infos, strict=True)
    ]


def weigh_sides(batch: DataProto) -> dict[str, float]:
    """Multiply the advantages of a batch by the weight of their side, in place; `sides.weights=by_error`.

    The side that errs more often weighs more; no gain was shown on a real model (docs/real_model.md). Errors
    are the share of retain responses that are refusals, and the share of forget responses that are none. With
    r = exp(STRENGTH (retain errors - forget errors)) of this batch, the weights are 2 / (1 + r) for forget
    rows and 2 r / (1 + r) for retain rows: they add up to 2, as without them.

    Returns:
        {"sides/retain_weight": 2 r / (1 + r)}; {} where the batch has one side only, which then weighs 1.

    Raises ValueError: the reward function does not return `refused`.
    """
    if "refused" not in batch.non_tensor_batch:
        raise ValueError(
            "sides.weights=by_error needs a reward function that returns `refused`, as reward.score does"
        )
    retain = np.array([label.side == "retain" for label in _labels(batch)])
    if retain.all() or not retain.any():
        return {}
    refused = np.asarray(batch.non_tensor_batch["refused"], dtype=float)
    ratio = math.exp(STRENGTH * (refused[retain].mean() - (1 - refused[~retain].mean())))
    retain_weight = 2 * ratio / (1 + ratio)
    weights = torch.from_numpy(np.where(retain, retain_weight, 2 / (1 + ratio)))
    advantages = batch.batch["advantages"]
    batch.batch["advantages"] = advantages * weights.to(advantages)[:, None]
    return {"sides/retain_weight": retain_weight}


def for_workers(batch: DataProto) -> DataProto:
    """The batch without the columns that no worker reads, sharing its tensors and `meta_info`.

    verl wraps, sends and unwraps every value of every column (the data set's labels, the reward's parts) with
    each call to the workers. Only the inputs of multi-modal prompts are used there.
    """
    inputs = batch.non_tensor_batch.get("multi_modal_inputs")
    used = ["multi_modal_inputs"] if inputs is not None and any(inputs) else []
    return batch.select(non_tensor_batch_keys=used)


def replay_batch(
    groups: Sequence[RolloutGroup],
    config: ReplayConfig,
    pad_token_id: int,
    temperature: float,
    ranks: int = 1,
) -> TensorDict:
    """The rows of drawn groups as verl's workers take them (no padding), in group order on one rank.

    `global_batch_size` and `mini_batch_size` are all rows: one optimiser step over the whole batch.

    `ranks`: processes that share the rows, each taking as many, in order. Groups of refusals are short and
    those of answers long, so rows are dealt such that all ranks have about as many tokens.
    """
    rows = pad_groups(groups, pad_token_id)
    token_num = rows["attention_mask"].sum(dim=-1).tolist()
    if ranks > 1 and len(token_num) % ranks == 0:
        order = [
            row for own in get_seqlen_balanced_partitions(token_num, ranks, equal_size=True) for row in own
        ]
        rows = {name: plane[order] for name, plane in rows.items()}
        token_num = [token_num[row] for row in order]
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


def _side_metrics(
    batch: DataProto,
    groups: Sequence[Sequence[int]],
    labels: Sequence[PromptLabel],
    rewards: torch.Tensor,
    limit: int,
) -> dict[str, float]:
    """See `Rollouts.side_metrics`; `labels` and `rewards` are those of the rows."""
    parts = answers_alone(batch.non_tensor_batch)
    values: dict[str, list[Any]] = defaultdict(list)
    lengths = batch.batch["response_mask"].sum(dim=-1).tolist()
    for row, (label, reward) in enumerate(zip(labels, rewards.tolist(), strict=True)):
        side = label.side
        values[f"reward/{side}/mean"].append(reward)
        values[f"reward/{side}/{label.mode}/mean"].append(reward)
        values[f"tokens/{side}/mean"].append(lengths[row])
        values[f"cut/{side}/mean"].append(lengths[row] >= limit)
        if "keyword" in parts and "refused" in parts:
            values[f"named/{side}/mean"].append(parts["keyword"][row] and not parts["refused"][row])
        for name, sides in _SHARES.items():
            if name in parts and side in sides:
                values[f"{name}/{side}/mean"].append(parts[name][row])
    for rows in groups:
        mixed = len({rewards[row].item() for row in rows}) > 1
        for name in (f"mixed/{labels[rows[0]].side}/mean", "mixed/mean"):
            values[name].append(mixed)
    return {name: float(np.mean(of)) for name, of in sorted(values.items())}
