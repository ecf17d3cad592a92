"""ReRULE's trainer on verl's V1: PPOTrainerSync with the hook of `trainer`, on rows that lie in a queue."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import ray
from tensordict import TensorDict
from torchdata.stateful_dataloader import StatefulDataLoader
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from recipe.rerule import io
from recipe.rerule.replay import ReplayConfig
from recipe.rerule.replay.log import timed
from recipe.rerule.training.batches import read
from recipe.rerule.training.batches_v1 import fetch
from recipe.rerule.training.hooked_trainer import HookedTrainer
from recipe.rerule.training.sides import stage2_sampler
from recipe.rerule.training.worker import ReplayActorWorker

POLL_SECONDS = 0.2
"""How often a step asks the queue whether its responses are there; with verl's 2 s, no step takes less."""


class ReRULETrainerV1(HookedTrainer, PPOTrainerSync):
    """With `replay_config.enable` false this is plain RULE: the calls of verl's PPOTrainerSync.

    A step calls `_update_actor` once, before the checkpoint and before the weights go to the rollout engine,
    so both see the model after the last update of the step.
    """

    def __init__(self, *, config: Any, replay_config: ReplayConfig) -> None:
        super().__init__(config=config, replay_config=replay_config)
        self.replay_buffer.poll_interval = POLL_SECONDS
        self._submitted: dict[str, int] = {}

    def is_finished(self) -> bool:
        """As `SavedRun`'s, before `init` has started any worker; the rows say how many steps there are."""
        self._init_tokenizer()
        self._init_dataloader()
        return super().is_finished()

    def _init_dataloader(self) -> None:
        """verl's, with the order of `data.sides`."""
        super()._init_dataloader()
        verls = self.train_dataloader
        self.train_dataloader = StatefulDataLoader(
            self.train_dataset,
            batch_size=verls.batch_size,
            sampler=stage2_sampler(self.config.data, self.train_dataset),
            num_workers=verls.num_workers,
            collate_fn=verls.collate_fn,
            drop_last=True,
        )

    def on_init_end(self) -> None:
        """verl's; each rank must then get as many of the drawn groups."""
        super().on_init_end()
        self.hook.multiple_of = max(self.actor_rollout_wg._query_dispatch_info("actor")) + 1

    def on_step_begin(self) -> None:
        """verl's; the step's prompts are numbered anew."""
        super().on_step_begin()
        self._submitted.clear()

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        for uid in batch["uid"]:
            self._submitted[uid] = len(self._submitted)
        count: int = super()._submit_batch_to_rollout(batch)
        return count

    def _init_resource_pool_mgr(self) -> None:
        """verl's; the actor's worker is the one with `update_actor_replay`."""
        super()._init_resource_pool_mgr()
        (role,) = {Role.ActorRolloutRef, Role.ActorRollout} & set(self.role_worker_mapping)
        self.role_worker_mapping[role] = ray.remote(ReplayActorWorker)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        seconds: dict[str, float] = {}
        with timed("offer", seconds):
            rows = fetch(batch, self._submitted)
            group_size = self.config.actor_rollout_ref.rollout.n
            limit = self.config.data.max_response_length
            # verl goes on where a response or its reward failed, with the prompt's other responses or none.
            rollouts = read(rows, self.global_steps, group_size, limit, strict=False)
        update = functools.partial(super()._update_actor, batch, metrics=metrics)
        batch = self._update_with_replay(rollouts, batch.extra_info, seconds, update)
        metrics.update(rollouts.side_metrics | self.hook.metrics(seconds))
        metrics["replay/short_groups"] = float(rollouts.short)
        self._say(metrics)
        self._save_this_step_if_due()
        return batch

    def _say(self, metrics: Mapping[str, Any]) -> None:
        super()._say(metrics)
        if short := metrics["replay/short_groups"]:
            io.warn(
                f"step {self.global_steps}: {short:.0f} prompts have fewer or more responses than rollout.n, "
                "because a response or its reward failed, or rollout correction left none; verl trains on "
                "what is left, replay does not store them"
            )
