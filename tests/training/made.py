"""A recorded batch of V0 in the form that V1's queue gives it."""

from __future__ import annotations

import random
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from verl import DataProto


class Queue:
    """The rows of one batch, fetched by key as `transfer_queue.kv_batch_get` does.

    Attributes:
        meta: what the trainer holds of them, in another order than V0's, with rows that fill up the batch.
        rows: V0's row number of each key.
        submitted: the number of each prompt in V0's order of first appearance, by uid.
    """

    def __init__(self, batch: DataProto, seed: int = 0, padding_rows: int = 2) -> None:
        self._batch = batch
        self.rows: dict[str, int] = {}
        uids = list(batch.non_tensor_batch["uid"])
        self.submitted = {uid: number for number, uid in enumerate(dict.fromkeys(uids))}
        sessions = dict.fromkeys(uids, 0)
        for row, uid in enumerate(uids):
            self.rows[f"{uid}_{sessions[uid]}_0"] = row
            sessions[uid] += 1
        pads = [f"pad{number}_0_0" for number in range(padding_rows)]
        keys = [*self.rows, *pads]
        random.Random(seed).shuffle(keys)
        tags = [{"status": "success", **({"is_padding": True} if key in pads else {})} for key in keys]
        self.meta = KVBatchMeta(keys=keys, tags=tags, partition_id="train", extra_info={"temperature": 0.7})

    def without(self, *keys: str) -> Queue:
        """The batch after the responses of `keys` have failed."""
        kept = [
            (key, tag) for key, tag in zip(self.meta.keys, self.meta.tags, strict=True) if key not in keys
        ]
        left, tags = zip(*kept, strict=True)
        self.meta = KVBatchMeta(keys=list(left), tags=list(tags), partition_id="train")
        return self

    def get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        """The rows of `keys` in their order, with those of the asked columns that there are."""
        assert partition_id == "train"
        columns = {name: [self._value(name, key) for key in keys] for name in select_fields}
        present = {name: values for name, values in columns.items() if values[0] is not None}
        data = TensorDict({}, batch_size=[len(keys)])
        for name, values in present.items():
            tensors = isinstance(values[0], torch.Tensor)
            data[name] = (
                torch.nested.as_nested_tensor(values, layout=torch.jagged)
                if tensors
                else NonTensorStack(*values)
            )
        return data

    def _value(self, name: str, key: str) -> Any:
        row, labels = self.rows[key], self._batch.non_tensor_batch
        if name == "extra_fields":
            return {"reward_extra_info": {"refused": labels["refused"][row]}}
        if name in labels:
            return labels[name][row]
        name = "token_level_scores" if name == "rm_scores" else name
        if name not in self._batch.batch.keys():  # noqa: SIM118  (a TensorDict iterates over rows)
            return None
        return self._batch.batch[name][row][self._real(name, row)]

    def _real(self, name: str, row: int) -> torch.Tensor:
        width = self._batch.batch["prompts"].shape[1]
        attended = self._batch.batch["attention_mask"][row].bool()
        return attended[:width] if name == "prompts" else attended[width:]
