"""The process that holds the trainer on verl's V1: as verl's own task runner, with our trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.utils.import_utils import load_class_from_fqn
from verl.utils.logging_utils import configure_verl_logging

from recipe.rerule import io
from recipe.rerule.replay import ReplayConfig
from recipe.rerule.runs import run_log
from recipe.rerule.schema import plain
from recipe.rerule.training.trainer_v1 import ReRULETrainerV1
from recipe.rerule.training.watch import Watch

CPU_LOOPS = "recipe.rerule.platform.agent_loop.CpuAgentLoopManager"
"""The agent loops of platform=cpu, which return V0's batches; V1 takes verl's own in their place."""


class ReRULETaskRunnerV1:
    """Runs one stage 2 inside a Ray actor; `ray.remote(ReRULETaskRunnerV1)` is what `run_ppo` starts."""

    def run(self, config: DictConfig) -> None:
        """Build the trainer and run it to its last step.

        Raises:
            WorkerFailureError: a worker, rollout engine, the queue or a node died; the message says which and
                why.
            DiskFullError: the run folder's disk is full.
        """
        configure_verl_logging()
        OmegaConf.resolve(config)
        with io.naming_full_disk(config.trainer.default_local_dir), _queue(config):
            trainer = ReRULETrainerV1(
                config=config, replay_config=ReplayConfig.from_dict(plain(config, "replay"))
            )
            if trainer.is_finished():
                return
            run_log.start(config)
            trainer.init()
            # What sends the prompts: the manager that the settings name, or verl's.
            name = config.actor_rollout_ref.rollout.agent.agent_loop_manager_class
            own = name is not None and name != CPU_LOOPS
            manager = load_class_from_fqn(name, "AgentLoopManager") if own else AgentLoopManagerTQ
            loops = manager.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
            with Watch(trainer, loops), _ended_logger(trainer):
                trainer.fit(loops)


@contextlib.contextmanager
def _queue(config: DictConfig) -> Iterator[None]:
    """The TransferQueue of the run."""
    config.transfer_queue.enable = True
    tq.init(config.transfer_queue)
    try:
        yield
    finally:
        tq.close()


@contextlib.contextmanager
def _ended_logger(trainer: ReRULETrainerV1) -> Iterator[None]:
    """verl's loggers are told how the run ended."""
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        if (logger := getattr(trainer, "logger", None)) is not None:
            logger.finish(exit_code=0 if succeeded else 1)
