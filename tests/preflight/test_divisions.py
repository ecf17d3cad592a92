"""The sizes that the checks accept are those that verl's own functions share without a remainder."""

import contextlib
import copy
import random
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.utils import tensordict_utils as tu
from verl.workers.engine.utils import prepare_micro_batches

from recipe.rerule.preflight import divisions
from recipe.rerule.schema import SettingsError
from tests.document_programs import composed

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
CHOICES = {
    "data.train_batch_size": (2, 4, 6, 8, 12),
    f"{ROLLOUT}.n": (2, 4, 8),
    f"{ACTOR}.ppo_mini_batch_size": (2, 4, 6, 8, 12),
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": (1, 2, 3, 4, 8),
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": (1, 2, 3, 4, 8),
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": (1, 2, 4),
    f"{ROLLOUT}.agent.num_workers": (1, 2, 3, 4, 8),
    "trainer.n_gpus_per_node": (1, 2, 3, 4),
    "trainer.nnodes": (1, 2),
}


def is_shared_by_verl(sizes: dict[str, int]) -> bool:
    """What RayPPOTrainer and its workers do with the rows of one step; one device stands for all."""
    prompts, n, mini_batch, micro, old, reference, loops, gpus, nodes = sizes.values()
    try:
        rows = DataProto.from_single_dict({"responses": torch.zeros(prompts * n, 1)})
        rows.chunk(loops)  # AgentLoopManager.generate_sequences
        of_device = tu.chunk_tensordict(rows.to_tensordict(), gpus * nodes)[0]  # dispatch to the workers
        for size in (old, reference):
            passes(of_device, size)
        assert mini_batch * n % (gpus * nodes) == 0  # TrainingWorker.train_mini_batch, from here on
        batches = tu.make_iterator(of_device, mini_batch * n // (gpus * nodes), epochs=1, seed=1)
        for batch in batches:
            passes(batch, micro)
    except AssertionError:
        return False
    return True


def passes(rows: Any, size: int) -> None:
    rows = rows.copy()
    tu.assign_non_tensor(rows, use_dynamic_bsz=False, micro_batch_size_per_gpu=size)
    batches, _ = prepare_micro_batches(rows)
    assert all(len(batch) == size for batch in batches)


def test_accepted_is_what_verl_shares() -> None:
    settings = ("actor_rollout_ref.actor.use_dynamic_bsz=false",)
    config = copy.deepcopy(composed("recipe.rerule.main", settings))
    rng = random.Random(1)
    found: dict[bool, int] = {True: 0, False: 0}
    while min(found.values()) < 25:
        sizes = {key: rng.choice(values) for key, values in CHOICES.items()}
        shared = is_shared_by_verl(sizes)
        for key, value in sizes.items():
            OmegaConf.update(config, key, value)
        with contextlib.nullcontext() if shared else pytest.raises(SettingsError):
            divisions.check_stage2(config)
        found[shared] += 1
