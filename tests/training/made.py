"""What several files here build: composed settings, files of rows, and a queue with a batch's rows."""

import random
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from omegaconf import open_dict
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from verl import DataProto

from tests import document_programs


def composed(stage: int | str, *words: str) -> Any:
    """The settings of a stage, or of another program that Hydra configures.

    Composing takes a second, so that is done once for the same groups (experiment, platform). Other settings
    are put into a copy: what is derived from them is derived when it is read.
    """
    groups = tuple(word for word in words if "." not in word.partition("=")[0])
    program = f"recipe.rerule.check stage{stage}" if isinstance(stage, int) else stage
    config = deepcopy(document_programs.composed(program, groups))
    single = [word for word in words if word not in groups]
    config.merge_with_dotlist([word for word in single if not word.startswith("+")])
    with open_dict(config):
        config.merge_with_dotlist([word[1:] for word in single if word.startswith("+")])
    return config


def rows_file(folder: Path, rows: int, name: str = "rows") -> Path:
    """A parquet file with so many rows."""
    pq.write_table(pa.table({"row": list(range(rows))}), folder / f"{name}.parquet")
    return folder / f"{name}.parquet"


def objects(values: Sequence[Any]) -> np.ndarray:
    """An array of these objects, which numpy would read as more dimensions where they are lists."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


class Queue:
    """The rows of one batch of V0, fetched by key as `transfer_queue.kv_batch_get` does.

    Attributes:
        meta: what the trainer holds of them, in another order than V0's, with two rows that fill it up.
        rows: V0's row number of each key.
        submitted: the number of each prompt in V0's order of first appearance, by uid.
    """

    def __init__(self, batch: DataProto, seed: int = 0) -> None:
        self._batch = batch
        uids = list(batch.non_tensor_batch["uid"])
        self.submitted = {uid: number for number, uid in enumerate(dict.fromkeys(uids))}
        self.rows = {f"{uid}_{uids[:row].count(uid)}_0": row for row, uid in enumerate(uids)}
        keys = [*self.rows, "pad0_0_0", "pad1_0_0"]
        random.Random(seed).shuffle(keys)
        tags = [{"status": "success"} | ({"is_padding": True} if "pad" in key else {}) for key in keys]
        self.meta = KVBatchMeta(keys=keys, tags=tags, partition_id="train", extra_info={"temperature": 0.7})

    def without(self, *keys: str) -> "Queue":
        """The batch after the responses of `keys` have failed."""
        places = [place for place, key in enumerate(self.meta.keys) if key not in keys]
        self.meta.keys = [self.meta.keys[place] for place in places]
        self.meta.tags = [self.meta.tags[place] for place in places]
        return self

    def get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        """The rows of `keys` in their order, with those of the asked columns that there are."""
        assert partition_id == "train"
        data = TensorDict({}, batch_size=[len(keys)])
        for name in select_fields:
            values = [self._value(name, self.rows[key]) for key in keys]
            if isinstance(values[0], torch.Tensor):
                data[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged)
            elif values[0] is not None:
                data[name] = NonTensorStack(*values)
        return data

    def _value(self, name: str, row: int) -> Any:
        labels, tensors = self._batch.non_tensor_batch, self._batch.batch
        if name == "extra_fields":
            return {"reward_extra_info": {"refused": labels["refused"][row]}}
        if name in labels:
            return labels[name][row]
        plane = tensors.get("token_level_scores" if name == "rm_scores" else name, None)
        if plane is None:
            return None
        width, attended = tensors["prompts"].shape[1], tensors["attention_mask"][row].bool()
        return plane[row][attended[:width] if name == "prompts" else attended[width:]]
