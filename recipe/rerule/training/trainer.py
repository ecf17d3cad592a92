"""ReRULE's trainer: verl's RayPPOTrainer with one hook, the extra updates after the on-policy update."""

from __future__ import annotations

import functools
from pathlib import Path

from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.utils.metric import reduce_metrics

from recipe.rerule.replay.log import timed
from recipe.rerule.training.batches import for_workers, read, weigh_sides
from recipe.rerule.training.hooked_trainer import HookedTrainer
from recipe.rerule.training.saved_run import restore_epoch_end


class ReRULETrainer(HookedTrainer, RayPPOTrainer):
    """With `replay_config.enable` false this is plain RULE: verl's worker calls with verl's data, but for the
    columns that no worker reads (see `batches.for_workers`).

    `fit()` calls `_update_actor` once a step, before the checkpoint and before the weights go to the rollout
    engine, so both see the model after the last update of the step.
    """

    def init_workers(self) -> None:
        """verl's; each rank must then get as many of the drawn groups."""
        super().init_workers()
        self.hook.multiple_of = self._get_dp_size(self.actor_rollout_wg, "actor")

    def _update_actor(self, batch: DataProto) -> DataProto:
        seconds: dict[str, float] = {}
        weights: dict[str, float] = {}
        with timed("offer", seconds):
            if self.config.sides.weights == "by_error":
                weights = weigh_sides(batch)
            limit = self.config.data.max_response_length
            rollouts = read(batch, self.global_steps, self.config.actor_rollout_ref.rollout.n, limit)
        update = functools.partial(super()._update_actor, rollouts.sent)
        output = self._update_with_replay(rollouts, rollouts.sent.meta_info, seconds, update)
        metrics = output.meta_info["metrics"]
        metrics.update(rollouts.side_metrics | weights | self.hook.metrics(seconds))
        self._say(reduce_metrics(dict(metrics)))
        self._save_this_step_if_due()
        return output

    def _compute_old_log_prob(self, batch: DataProto) -> tuple[DataProto, float]:
        return super()._compute_old_log_prob(for_workers(batch))

    def _compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        return super()._compute_ref_log_prob(for_workers(batch))

    def _compute_values(self, batch: DataProto) -> DataProto:
        return super()._compute_values(for_workers(batch))

    def _update_critic(self, batch: DataProto) -> DataProto:
        return super()._update_critic(for_workers(batch))

    def _restore_order(self, folder: Path) -> None:
        restore_epoch_end(self.train_dataloader, self.global_steps, folder)
