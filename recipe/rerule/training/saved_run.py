"""Checkpoints of a training run, the same whichever of verl's trainers writes its part of them."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig

from recipe.rerule import io
from recipe.rerule.replay import Replay, ReplayConfig, ReplayStateError, load, save
from recipe.rerule.runs import checkpoints, written_model

LOADER_FILE = "data.pt"
"""verl's file of the training loader in a checkpoint."""

if TYPE_CHECKING:
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer as _Trainer
else:
    _Trainer = object  # the trainer of verl stands behind `SavedRun` among the bases


class SavedRun(_Trainer):
    """Stands before a trainer of verl among the bases of a class, and makes its checkpoints consistent cuts.

    Attributes:
        replay: what is saved and loaded with the model; None where replay is off.
        replay_config: says whether it is loaded.
    """

    replay: Replay | None
    replay_config: ReplayConfig
    # verl's, which are also set here.
    total_training_steps: int
    train_dataloader: Any
    val_dataloader: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._checkpoints_to_keep = self.config.trainer.max_actor_ckpt_to_keep
        self._save_freq = self.config.trainer.save_freq
        self._saved_at = time.monotonic()

    def is_finished(self) -> bool:
        """Whether the run to be resumed has already done its last step.

        Raises ValueError: it goes on from another run's checkpoint, which leaves no step to train.
        """
        trainer, last = self.config.trainer, self.total_training_steps
        if trainer.resume_mode != "resume_path":
            step = checkpoints.newest_complete(trainer.default_local_dir)
            return trainer.resume_mode == "auto" and step is not None and step >= last
        given = Path(trainer.resume_from_path)
        done = (checkpoints.step_of(given.name) or 0) >= last
        if done and given.parent.resolve() != Path(trainer.default_local_dir).resolve():
            raise ValueError(
                f"trainer.resume_from_path is {given}, and this run's last step is {last}: no step is left "
                "to train; raise trainer.total_training_steps or trainer.total_epochs"
            )
        return done

    def fit(self, *args: Any) -> None:
        """verl's, which returns without a word where the rows end before the last step.

        Raises ValueError: they did.
        """
        super().fit(*args)
        trainer, done, last = self.config.trainer, self.global_steps - 1, self.total_training_steps
        if done < last and not trainer.val_only:
            raise ValueError(
                f"the rows of {trainer.total_epochs} epochs ended at step {done} of {last}, so that the last "
                "step, which saves the model, never came; raise trainer.total_epochs, or lower "
                "trainer.total_training_steps"
            )

    def _keep_metrics(self) -> None:
        """Put the step's metrics on the disk before its checkpoint; verl logs them later."""

    def _restore_order(self, folder: Path) -> None:
        """Restore of the prompts' order what verl's own loading of a checkpoint does not."""

    def _save_this_step_if_due(self) -> None:
        """Where a checkpoint is due by time, have `fit` save this step: it reads save_freq after this."""
        minutes = self.config.save.minutes
        if self._save_freq < 1 or minutes is None or time.monotonic() - self._saved_at < 60 * minutes:
            return
        asked_for = self.global_steps % self._save_freq == 0 or self.global_steps >= self.total_training_steps
        if not asked_for:
            self.config.trainer.save_freq = 1

    def _save_checkpoint(self) -> None:
        interim = self.config.trainer.save_freq != self._save_freq
        self.config.trainer.save_freq = self._save_freq
        self._save(interim)
        self._saved_at = time.monotonic()

    def _save(self, interim: bool) -> None:
        run_folder = self.config.trainer.default_local_dir
        checkpoints.begin(run_folder, self.global_steps)
        folder = checkpoints.step_folder(run_folder, self.global_steps)
        needed = functools.partial(checkpoints.bytes_of_newest, run_folder)
        config, dtype = self.config, self.config.save.weights_dtype
        try:
            with io.naming_full_disk(folder, needed=needed):
                if self.replay is not None:
                    save(self.replay, folder / "replay", run_identity(config, self.tokenizer))
                # verl would delete the oldest checkpoint before this one is whole; we do it afterwards.
                config.trainer.max_actor_ckpt_to_keep = config.trainer.max_critic_ckpt_to_keep = None
                super()._save_checkpoint()
                model = config.actor_rollout_ref.model
                written_model.settle(folder / "actor" / "huggingface", model, dtype)
                written_model.set_dtype(folder / "critic" / "huggingface", dtype, config.critic.model.path)
                self._keep_metrics()
                checkpoints.finish(run_folder, self.global_steps, interim)
        except io.DiskFullError:  # what was written of this checkpoint takes room
            checkpoints.begin(run_folder, self.global_steps)
            raise
        checkpoints.keep(run_folder, self._checkpoints_to_keep)

    def _load_checkpoint(self) -> None:
        folder = checkpoints.find(self.config.trainer)
        super()._load_checkpoint()
        if folder is None:
            return
        self._restore_order(folder)
        if self.replay is not None and self.replay_config.restore:
            load(self.replay, folder / "replay", run_identity(self.config, self.tokenizer))
            check_references(self.replay)


def restore_epoch_end(loader: StatefulDataLoader[Any], step: int, checkpoint: str | Path) -> None:
    """Where `step` ended an epoch, let the next epoch have the order the uninterrupted run would see.

    verl restores its loader within an epoch, which is exact, but not at the end of one, so that its next
    epoch repeats the first one's order. Here the saved loader is restored and run to its end, where it has no
    batch left to give. That leaves the sampler's generator as it was, however often an epoch draws from it
    (once, or twice with loader workers). To be called after verl's own restoring; within an epoch it does
    nothing.

    Args:
        loader: the training loader, before its first batch; `len(loader)` is the batches of an epoch.
        step: training steps done, one batch each.
        checkpoint: the folder of that step, with verl's data.pt in it.

    Raises:
        ValueError: the saved loader is not at the end of an epoch of this loader.
        OSError: data.pt cannot be read.
    """
    if step % len(loader):
        return
    path = Path(checkpoint) / LOADER_FILE
    loader.load_state_dict(torch.load(path, weights_only=True))
    for _ in loader:
        raise ValueError(
            f"{path} was saved within an epoch, but with the {len(loader)} batches an epoch has now, step "
            f"{step} ends one; resume with the data.train_files and data.train_batch_size of the checkpoint"
        )


def check_references(replay: Replay) -> None:
    """Refuse a buffer of a run without a KL term where replay updates have one. Raises ReplayStateError."""
    if replay.config.use_kl_loss and not all(stored.has_ref for stored in replay.buffer):
        raise ReplayStateError(
            "the replay buffer was saved without reference log-probs, which replay.use_kl_loss=true needs; "
            "set it to false, or pass replay.restore=false to start with an empty buffer"
        )


def run_identity(config: DictConfig, tokenizer: Any) -> dict[str, str | float]:
    """Model, group size, temperature, response length and tokenizer of a run, by setting.

    Stored groups are token ids with log-probs at the temperature, of the policy and of the model that the run
    started from, and replay batches are padded and normalised as groups of one size; under another value the
    buffer would be misread rather than merely stale. Of the tokenizer it is a digest of its map from token to
    id, 16 hexadecimal digits.
    """
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return {
        "actor_rollout_ref.model.path": config.actor_rollout_ref.model.path,
        "actor_rollout_ref.rollout.n": config.actor_rollout_ref.rollout.n,
        "actor_rollout_ref.rollout.temperature": config.actor_rollout_ref.rollout.temperature,
        "data.max_response_length": config.data.max_response_length,
        "tokenizer": hashlib.sha256(vocabulary.encode()).hexdigest()[:16],
    }
