"""verl's own validation, of either trainer, with the sides found by ours; engine and queue are stand-ins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl import DataProto
from verl.trainer.ppo.v1 import trainer_base

from recipe.rerule.training.trainer import ReRULETrainer
from recipe.rerule.training.trainer_v1 import ReRULETrainerV1

SIDES = ["forget", "retain", "forget", "retain", "retain"]
REFUSED = [1.0, 0.0, 0.0, 1.0, 0.0]
RIGHT = [0.0, 1.0, 0.0, 0.0, 1.0]
EXPECTED = {
    "val-health/forget/refused": 0.5,
    "val-health/retain/refused": 1 / 3,
    "val-health/retain/right": 2 / 3,
    "val-health/score": 7 / 12,
}


class Tokenizer:
    eos_token_id, pad_token_id = 1, 0

    def decode(self, ids: torch.Tensor, skip_special_tokens: bool) -> str:
        return " ".join(map(str, ids.tolist()))


def objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def rows() -> dict[str, Any]:
    """A batch as verl's loader gives it; a row's number stands in its prompt."""
    return {
        "dummy_tensor": torch.zeros(len(SIDES), 1, dtype=torch.uint8),
        "raw_prompt": objects([[{"role": "user", "content": str(row)}] for row in range(len(SIDES))]),
        "reward_model": objects([{"ground_truth": {"type": side}} for side in SIDES]),
        "data_source": objects(["rerule/custom"] * len(SIDES)),
        "extra_info": objects([{"index": row} for row in range(len(SIDES))]),
    }


def made(kind: type) -> Any:
    trainer: Any = object.__new__(kind)
    rollout = {"val_kwargs": {"n": 2, "do_sample": False}, "agent": {"num_workers": 3}}
    trainer.config = OmegaConf.create(
        {
            "actor_rollout_ref": {"rollout": rollout},
            "trainer": {"log_val_generations": 0, "validation_data_dir": None},
            "save": {"best": False},
        }
    )
    trainer.tokenizer, trainer.global_steps, trainer.use_rm = Tokenizer(), 4, False
    trainer.val_dataloader = [rows(), rows()]
    return trainer


def reward_info(row: int) -> dict[str, float]:
    return {"refused": REFUSED[row], "right": RIGHT[row]}


def test_of_v0() -> None:
    class Rollouts:
        def generate_sequences(self, batch: DataProto) -> DataProto:
            asked = [int(prompt[0]["content"]) for prompt in batch.non_tensor_batch["raw_prompt"]]
            tokens = torch.tensor([[5, row] for row in asked])
            parts = {name: np.array([reward_info(row)[name] for row in asked]) for name in reward_info(0)}
            return DataProto.from_dict(
                tensors={"prompts": tokens, "responses": tokens, "rm_scores": torch.zeros(len(asked), 2)},
                non_tensors=parts,
                meta_info={"reward_extra_keys": list(parts)},
            )

    trainer = made(ReRULETrainer)
    trainer.async_rollout_manager = Rollouts()
    metrics = trainer._validate()
    assert {name: metrics[name] for name in EXPECTED} == pytest.approx(EXPECTED)
    assert "val-aux/rerule/custom/refused/mean@2" in metrics


def test_of_v1(monkeypatch: pytest.MonkeyPatch) -> None:
    class Queue:
        """Gives the responses of a batch in the reverse order, and one of them is lost."""

        def generate_sequences(self, batch: Any) -> None:
            self.uids = list(batch["uid"])

        def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, None]:
            keys = [f"{uid}_{number}_0" for uid in reversed(self.uids) for number in range(2)][:-1]
            return KVBatchMeta(keys=keys, tags=[{}] * len(keys), partition_id=partition_id), None

        def get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
            asked = [self.uids.index(key.rsplit("_", 2)[0]) for key in keys]
            tokens = torch.nested.as_nested_tensor([torch.tensor([5, row]) for row in asked])
            found = {
                "prompts": tokens,
                "responses": tokens,
                "uid": objects([self.uids[row] for row in asked]),
                "rm_scores": torch.zeros(len(asked), 2),
                "num_turns": torch.ones(len(asked)),
                "reward_model": objects([{"ground_truth": {"type": SIDES[row]}} for row in asked]),
                "data_source": objects(["rerule/custom"] * len(asked)),
                "extra_fields": objects([{"reward_extra_info": reward_info(row)} for row in asked]),
            }
            return {name: found[name] for name in select_fields}

    queue = Queue()
    monkeypatch.setattr(trainer_base.tq, "kv_batch_put", lambda **arguments: None)
    monkeypatch.setattr(trainer_base.tq, "kv_clear", lambda **arguments: None)
    monkeypatch.setattr(trainer_base.tq, "kv_batch_get", queue.get)
    trainer = made(ReRULETrainerV1)
    trainer.agent_loop_manager = trainer.replay_buffer = queue
    trainer.reward_loop_manager = OmegaConf.create({"reward_loop_worker_handles": [1]})
    metrics = trainer._validate()
    # The first row, of the forget side, has one response in each batch: refused 1 of 1, the other 0 of 2.
    expected = EXPECTED | {"val-health/forget/refused": 1 / 3, "val-health/score": (1 / 3 + 2 / 3) / 2}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
