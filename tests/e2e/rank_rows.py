"""Writes down which rows each rank gets for a replay update; the update itself is unchanged.

Named in `actor_rollout_ref.model.external_lib`, so that verl imports it in every worker, which finds it
through PYTHONPATH. RANK_ROWS is the folder for rank_N.jsonl: for each update a line with the token ids of
every row.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

WORKER = "recipe.rerule.training.worker"


def record(update: Any) -> Any:
    def recorded(worker: Any, data: Any, *options: Any) -> Any:
        path = Path(os.environ["RANK_ROWS"]) / f"rank_{torch.distributed.get_rank()}.jsonl"
        with open(path, "a") as file:
            file.write(json.dumps([row.tolist() for row in data["input_ids"].unbind()]) + "\n")
        return update(worker, data, *options)

    return recorded


if WORKER in sys.modules and "RANK_ROWS" in os.environ:
    module: Any = sys.modules[WORKER]
    module.replay_update = record(module.replay_update)
