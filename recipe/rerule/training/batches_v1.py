"""From the queue of verl's V1 trainer to the batch that `batches` reads.

V1 keeps a step's rows in a TransferQueue: its trainer holds their keys and tags, and fetches each column
without padding. V0 holds the same rows as padded tensors. Here they become V0's, so that both trainers give
the hook the same groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch.nn.utils.rnn import pad_sequence
from transfer_queue import KVBatchMeta
from verl import DataProto

_RESPONSES = (
    "responses",
    "response_mask",
    "old_log_probs",
    "ref_log_prob",
    "advantages",
    "returns",
    "values",
)
"""Columns of a value a response token, under the names that V0 has too."""
_SCORES = {"rm_scores": "token_level_scores", "token_level_rewards": "token_level_rewards"}
"""The same under V1's names, with V0's."""
_LABELS = ("reward_model", "extra_info")
COLUMNS = ("prompts", *_RESPONSES, *_SCORES, *_LABELS, "extra_fields")
"""What is fetched of the queue; a column that the run does not have is left out there."""


def fetch(batch: KVBatchMeta, submitted: Mapping[str, int]) -> DataProto:
    """The rows of a step as V0 has them, without those with which verl fills up a batch.

    Args:
        batch: as `_update_actor` gets it.
        submitted: the number of each prompt in the order in which it went to generation, by uid.
    """
    keys = ordered_keys(batch.keys, batch.tags, submitted)
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=list(COLUMNS))
    return as_v0(keys, data)


def ordered_keys(
    keys: Sequence[str], tags: Sequence[Mapping[str, Any]], submitted: Mapping[str, int]
) -> list[str]:
    """The keys of real rows: prompts as they were submitted, and the responses of each by their number.

    The queue has rows in the order in which they were finished, which differs between two runs of the same
    settings; the buffer and its draws must not. Prompts that were not submitted in this run come last.
    """
    real = [key for key, tag in zip(keys, tags, strict=True) if not tag.get("is_padding", False)]

    def place(key: str) -> tuple[int, str, int, int]:
        uid, session, output = split_key(key)
        return submitted.get(uid, len(submitted)), uid, session, output

    return sorted(real, key=place)


def split_key(key: str) -> tuple[str, int, int]:
    """The uid of a row's prompt, the number of its response, and of the response's output."""
    uid, session, output = key.rsplit("_", 2)
    return uid, int(session), int(output)


def as_v0(keys: Sequence[str], data: TensorDict) -> DataProto:
    """V0's batch of the rows with these keys and columns: prompts padded left, all else right, with 0."""
    present = set(data.keys())
    rows = {name: data[name].unbind() for name in ("prompts", *_RESPONSES, *_SCORES) if name in present}
    tensors = {name: _padded(rows[name]) for name in _RESPONSES if name in rows}
    tensors["prompts"] = _padded(rows["prompts"], side="left")
    tensors |= {name: _padded(rows[given]) for given, name in _SCORES.items() if given in rows}
    tensors.setdefault("token_level_rewards", tensors["token_level_scores"])
    real = {part: [torch.ones_like(row) for row in rows[part]] for part in ("prompts", "responses")}
    attended = [_padded(real["prompts"], side="left"), _padded(real["responses"])]
    tensors["attention_mask"] = torch.cat(attended, dim=1)
    infos = [fields.get("reward_extra_info", {}) for fields in _plain(data["extra_fields"])]
    # The parts of the reward, but for those that some row lacks.
    parts = [name for name in next(iter(infos), {}) if all(name in info for info in infos)]
    columns = {name: [info[name] for info in infos] for name in parts}
    columns |= {name: _plain(data[name]) for name in _LABELS} | {"uid": [split_key(key)[0] for key in keys]}
    objects = {name: np.empty(len(keys), dtype=object) for name in columns}
    for name, values in columns.items():
        objects[name][:] = values  # numpy would read a list of equal mappings or lists as more dimensions
    return DataProto.from_dict(tensors=tensors, non_tensors=objects)


def _padded(rows: Sequence[torch.Tensor], side: str = "right") -> torch.Tensor:
    return pad_sequence(list(rows), batch_first=True, padding_side=side)


def _plain(column: Any) -> list[Any]:
    return [getattr(value, "data", value) for value in column]
