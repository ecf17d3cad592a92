"""The process that holds the trainer: set up as by verl's own task runner, with our trainer and worker."""

from __future__ import annotations

from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from verl.trainer.main_ppo_v0 import BaseTaskRunner
from verl.trainer.ppo.utils import create_rl_dataset, need_critic

from recipe.rerule import io
from recipe.rerule.replay import ReplayConfig
from recipe.rerule.runs import run_log
from recipe.rerule.schema import plain
from recipe.rerule.training.sides import stage2_sampler
from recipe.rerule.training.trainer import ReRULETrainer
from recipe.rerule.training.watch import Watch
from recipe.rerule.training.worker import ReplayActorWorker


class ReRULETaskRunner(BaseTaskRunner):
    """Runs one stage 2 inside a Ray actor; `ray.remote(ReRULETaskRunner)` is what `run_ppo` starts."""

    def add_actor_rollout_worker(self, config: DictConfig) -> tuple[type, type]:
        """As verl's, with the actor worker that has `update_actor_replay`."""
        _, worker_group_class = super().add_actor_rollout_worker(config)
        (role,) = self.role_worker_mapping
        self.role_worker_mapping[role] = ray.remote(ReplayActorWorker)
        return ReplayActorWorker, worker_group_class

    def run(self, config: DictConfig) -> None:
        """Build the trainer and run it to its last step.

        Raises:
            WorkerFailureError: a worker, rollout engine or node died; the message says which and why.
            DiskFullError: the run folder's disk is full.
        """
        OmegaConf.resolve(config)
        trainer = self._build_trainer(config)
        if trainer.is_finished():
            return
        with io.naming_full_disk(config.trainer.default_local_dir):
            run_log.start(config)
            trainer.init_workers()
            with Watch(trainer, trainer.async_rollout_manager):
                trainer.fit()

    def _build_trainer(self, config: DictConfig) -> ReRULETrainer:
        from verl.utils.config import omega_conf_to_dataclass
        from verl.utils.dataset.rl_dataset import collate_fn

        _, ray_worker_group_cls = self.add_actor_rollout_worker(config)
        if need_critic(config):
            self.add_critic_worker(config)
        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        train_dataset = self._dataset(config, model, "train")
        return ReRULETrainer(
            config=config,
            replay_config=ReplayConfig.from_dict(plain(config, "replay")),
            tokenizer=model.tokenizer,
            processor=model.processor,
            role_worker_mapping=self.role_worker_mapping,
            resource_pool_manager=self.init_resource_pool_mgr(config),
            ray_worker_group_cls=ray_worker_group_cls,
            train_dataset=train_dataset,
            val_dataset=self._dataset(config, model, "val"),
            collate_fn=collate_fn,
            train_sampler=stage2_sampler(config.data, train_dataset),
        )

    @staticmethod
    def _dataset(config: DictConfig, model: Any, split: str) -> Any:
        return create_rl_dataset(
            config.data[f"{split}_files"],
            config.data,
            model.tokenizer,
            model.processor,
            is_train=split == "train",
            max_samples=config.data.get(f"{split}_max_samples", -1),
        )
