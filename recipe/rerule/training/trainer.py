"""ReRULE's trainer: verl's RayPPOTrainer with one hook, the extra updates after the on-policy update."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.utils import tensordict_utils as tu
from verl.utils.metric import reduce_metrics

from recipe.rerule.process import disk
from recipe.rerule.replay import ReplayConfig, ReplayHook, RolloutGroup, load, save
from recipe.rerule.replay.log import timed
from recipe.rerule.runs import checkpoints, final_weights, run_log, written_model
from recipe.rerule.runs.data_order import restore_epoch_end
from recipe.rerule.runs.fingerprint import run_identity
from recipe.rerule.runs.save_clock import SaveClock
from recipe.rerule.training.batches import Rollouts, for_workers, read, replay_batch
from recipe.rerule.training.step_metrics import metrics_before_save, progress_line
from recipe.rerule.training.worker import PAUSE_SCHEDULE, STAY_LOADED


class ReRULETrainer(RayPPOTrainer):
    """With `replay_config.enable` false this is plain RULE: verl's worker calls with verl's data, but for the
    columns that no worker reads (see `batches.for_workers`).

    `fit()` calls `_update_actor` once a step, before the checkpoint and before the weights go to the rollout
    engine, so both see the model after the last update of the step.
    """

    def __init__(self, *args: Any, replay_config: ReplayConfig, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._fit_metrics: dict[str, Any] = {}
        self.replay_config = replay_config
        self.hook = ReplayHook(replay_config)
        self.replay = self.hook.replay
        # verl would delete the oldest checkpoint before the next one is whole; we do it afterwards.
        self._checkpoints_to_keep = self.config.trainer.max_actor_ckpt_to_keep
        self.config.trainer.max_actor_ckpt_to_keep = self.config.trainer.max_critic_ckpt_to_keep = None
        self._save_freq = self.config.trainer.save_freq
        self._save_clock = SaveClock(self.config.save.minutes)

    def is_finished(self) -> bool:
        """Whether the run to be resumed has already done its last step; verl would do one more."""
        trainer = self.config.trainer
        step = {
            "auto": checkpoints.newest_complete(trainer.default_local_dir),
            "resume_path": checkpoints.step_of(Path(trainer.resume_from_path or "").name),
        }.get(trainer.resume_mode)
        return step is not None and step >= self.total_training_steps

    def init_workers(self) -> None:
        """verl's; each rank must then get as many of the drawn groups."""
        super().init_workers()
        self.hook.multiple_of = self._get_dp_size(self.actor_rollout_wg, "actor")

    def _update_actor(self, batch: DataProto) -> DataProto:
        seconds: dict[str, float] = {}
        with timed("offer", seconds):
            rollouts = read(batch, self.global_steps, self.config.actor_rollout_ref.rollout.n)
        plan = self.hook.before_update(rollouts.groups, self.global_steps)
        output = self._on_policy_update(rollouts.sent, {STAY_LOADED: True} if plan.draws else {})
        self.hook.after_update(plan, functools.partial(self._extra_update, rollouts.sent, seconds))
        with timed("record", seconds):
            self._record(rollouts)
        metrics = output.meta_info["metrics"]
        metrics.update(rollouts.reward_metrics | self.hook.log.metrics(seconds))
        print(progress_line(self.global_steps, self.total_training_steps, metrics), flush=True)
        self._last_update = batch, output
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

    def _balance_batch(self, batch: DataProto, metrics: dict[str, Any], **options: Any) -> None:
        super()._balance_batch(batch, metrics, **options)
        self._fit_metrics = metrics  # verl adds to it as the step goes on, and logs it after the checkpoint

    def _on_policy_update(self, sent: DataProto, marks: Mapping[str, bool]) -> DataProto:
        """verl's own update; `marks` tell the worker what else belongs to the step."""
        with _marked(sent, marks):
            return super()._update_actor(sent)

    def _extra_update(
        self, sent: DataProto, seconds: dict[str, float], drawn: list[RolloutGroup], more_follow: bool
    ) -> dict[str, float]:
        """One update after the on-policy update: a replay update, or its control on the same batch."""
        marks = {STAY_LOADED: True} if more_follow else {}
        if self.replay_config.update == "on_policy":
            with timed("update", seconds):
                return self._update_actor_again(sent, marks)
        with timed("collate", seconds):
            data = self._replay_data(drawn, marks)
        with timed("update", seconds):
            output = self.actor_rollout_wg.update_actor_replay(data)
        return dict(tu.get(output, "metrics"))

    def _update_actor_again(self, sent: DataProto, marks: Mapping[str, bool]) -> dict[str, float]:
        """The equal-update control: this step's on-policy update once more, the schedule unmoved."""
        output = self._on_policy_update(sent, {PAUSE_SCHEDULE: True, **marks})
        metrics = reduce_metrics(output.meta_info["metrics"])
        return {"replay/pg_loss": metrics["actor/pg_loss"], "replay/grad_norm": metrics["actor/grad_norm"]}

    def _replay_data(self, drawn: list[RolloutGroup], marks: Mapping[str, bool]) -> Any:
        temperature = self.config.actor_rollout_ref.rollout.temperature
        data = replay_batch(drawn, self.replay_config, self.tokenizer.pad_token_id, temperature)
        tu.assign_non_tensor(data, **marks)
        return data

    def _record(self, rollouts: Rollouts) -> None:
        run_folder, groups, prompts = self.config.trainer.default_local_dir, rollouts.groups, rollouts.prompts
        subjects = {index: label.subject for index, label in prompts.items()}
        run_log.append_prompts(run_folder, self.global_steps, groups, subjects)
        if self.config.records.rollouts:
            queries = {index: label.query for index, label in prompts.items()}
            run_log.write_rollouts(run_folder, self.global_steps, groups, queries, self.tokenizer)
        if self.hook.log.has_replay:
            run_log.append_replay(run_folder, self.hook.log.replay)

    def _save_this_step_if_due(self) -> None:
        """Where a checkpoint is due by time, have `fit` save this step: it reads save_freq after this."""
        if self._save_freq < 1 or not self._save_clock.is_due():
            return
        asked_for = self.global_steps % self._save_freq == 0 or self.global_steps >= self.total_training_steps
        if not asked_for:
            self.config.trainer.save_freq = 1

    def _save_checkpoint(self) -> None:
        interim = self.config.trainer.save_freq != self._save_freq
        self.config.trainer.save_freq = self._save_freq
        self._save(interim)
        self._save_clock.restart()

    def _save(self, interim: bool) -> None:
        run_folder = self.config.trainer.default_local_dir
        checkpoints.begin(run_folder, self.global_steps)
        folder = checkpoints.step_folder(run_folder, self.global_steps)
        needed = functools.partial(checkpoints.bytes_of_newest, run_folder)
        with self._discarded_without_room(), disk.named(folder, needed=needed):
            if self.replay is not None:
                save(self.replay, folder / "replay", run_identity(self.config, self.tokenizer))
            super()._save_checkpoint()
            self._settle_weights(folder)
            self._keep_metrics()
            checkpoints.finish(run_folder, self.global_steps, interim)
        checkpoints.drop_interim(run_folder)
        if self._checkpoints_to_keep is not None:
            checkpoints.keep(run_folder, self._checkpoints_to_keep)

    def _settle_weights(self, folder: Path) -> None:
        config, dtype = self.config, self.config.save.weights_dtype
        written_model.settle(folder / "actor" / "huggingface", config.actor_rollout_ref.model, dtype)
        final_weights.settle(folder / "critic" / "huggingface", dtype, config.critic.model.path)

    @contextlib.contextmanager
    def _discarded_without_room(self) -> Iterator[None]:
        """Where the disk is full, delete what was written of the step's checkpoint."""
        try:
            yield
        except disk.DiskFullError:
            checkpoints.begin(self.config.trainer.default_local_dir, self.global_steps)
            raise

    def _keep_metrics(self) -> None:
        """Put the step's metrics on the disk before its checkpoint counts; verl logs them after it."""
        metrics = self._fit_metrics | metrics_before_save(*self._last_update, self.use_critic)
        epoch = (self.global_steps - 1) // len(self.train_dataloader)
        place = {"training/global_step": self.global_steps, "training/epoch": epoch}
        run_log.keep_metrics(self.global_steps, metrics | place)

    def _load_checkpoint(self) -> None:
        folder = self._prepare_resume()
        super()._load_checkpoint()
        if folder is None:
            return
        restore_epoch_end(self.train_dataloader, self.global_steps, folder)
        if self.replay is not None and self.replay_config.restore:
            load(self.replay, folder / "replay", run_identity(self.config, self.tokenizer))

    def _prepare_resume(self) -> Path | None:
        """The checkpoint this run goes on from, which verl's `_load_checkpoint` then finds too."""
        trainer = self.config.trainer
        if trainer.resume_mode == "resume_path":
            checkpoints.prepare_resume_from(trainer.default_local_dir, trainer.resume_from_path)
            return Path(trainer.resume_from_path)
        if trainer.resume_mode == "disable":
            return None
        resume = checkpoints.prepare_resume(trainer.default_local_dir)
        if resume.notice is not None:
            print(resume.notice, flush=True)
        if resume.step is None:
            return None
        return checkpoints.step_folder(trainer.default_local_dir, resume.step)


@contextlib.contextmanager
def _marked(batch: DataProto, marks: Mapping[str, bool]) -> Iterator[None]:
    """`marks` in the batch's meta_info, which verl passes on to the worker."""
    batch.meta_info.update(marks)
    try:
        yield
    finally:
        for mark in marks:
            del batch.meta_info[mark]
