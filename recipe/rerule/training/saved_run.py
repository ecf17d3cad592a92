"""Checkpoints of a training run, the same whichever of verl's trainers writes its part of them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from recipe.rerule import io
from recipe.rerule.replay import Replay, ReplayConfig, load, save
from recipe.rerule.runs import checkpoints, written_model

if TYPE_CHECKING:

    class _Trainer:
        """What a trainer of verl has and does."""

        config: Any
        tokenizer: Any
        global_steps: int
        total_training_steps: int

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def _save_checkpoint(self) -> None: ...
        def _load_checkpoint(self) -> None: ...
        def _validate(self, *args: Any, **kwargs: Any) -> Any: ...
        def _val_metrics_update(self, *args: Any, **kwargs: Any) -> Any: ...
        def _keep_metrics(self) -> None:
            """ReRULE's: put the step's metrics on the disk before its checkpoint; verl logs them later."""

else:
    _Trainer = object


class SavedRun(_Trainer):
    """Stands before a trainer of verl among the bases of a class, and makes its checkpoints consistent cuts.

    Attributes:
        replay: what is saved and loaded with the model; None where replay is off.
        replay_config: says whether it is loaded.
    """

    replay: Replay | None
    replay_config: ReplayConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # verl would delete the oldest checkpoint before the next one is whole; we do it afterwards.
        self._checkpoints_to_keep = self.config.trainer.max_actor_ckpt_to_keep
        self.config.trainer.max_actor_ckpt_to_keep = self.config.trainer.max_critic_ckpt_to_keep = None
        self._save_freq = self.config.trainer.save_freq
        self._saved_at = time.monotonic()

    def is_finished(self) -> bool:
        """Whether the run to be resumed has already done its last step."""
        trainer = self.config.trainer
        step = {
            "auto": checkpoints.newest_complete(trainer.default_local_dir),
            "resume_path": checkpoints.step_of(Path(trainer.resume_from_path or "").name),
        }.get(trainer.resume_mode)
        return step is not None and step >= self.total_training_steps

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
        with self._discarded_without_room(), io.naming_full_disk(folder, needed=needed):
            if self.replay is not None:
                save(self.replay, folder / "replay", run_identity(self.config, self.tokenizer))
            super()._save_checkpoint()
            self._settle_weights(folder)
            self._keep_metrics()
            checkpoints.finish(run_folder, self.global_steps, interim)
        self._delete_old()

    def _delete_old(self) -> None:
        """Delete the checkpoints that are not to be kept; the best and the newest one stay."""
        run_folder = self.config.trainer.default_local_dir
        checkpoints.drop_interim(run_folder)
        if self._checkpoints_to_keep is not None:
            checkpoints.keep(run_folder, self._checkpoints_to_keep)

    def _settle_weights(self, folder: Path) -> None:
        config, dtype = self.config, self.config.save.weights_dtype
        written_model.settle(folder / "actor" / "huggingface", config.actor_rollout_ref.model, dtype)
        written_model.set_dtype(folder / "critic" / "huggingface", dtype, config.critic.model.path)

    @contextlib.contextmanager
    def _discarded_without_room(self) -> Iterator[None]:
        """Where the disk is full, delete what was written of the step's checkpoint."""
        try:
            yield
        except io.DiskFullError:
            checkpoints.begin(self.config.trainer.default_local_dir, self.global_steps)
            raise

    def _load_checkpoint(self) -> None:
        folder = self._prepare_resume()
        super()._load_checkpoint()
        if folder is None:
            return
        self._restore_order(folder)
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


def run_identity(config: DictConfig, tokenizer: Any) -> dict[str, str | int]:
    """Group size, response length and tokenizer of a run, by setting.

    Stored groups are token ids, and replay batches are padded and normalised as groups of one size; under
    another value the buffer would be misread rather than merely stale. Of the tokenizer it is a digest of its
    map from token to id, 16 hexadecimal digits.
    """
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return {
        "actor_rollout_ref.rollout.n": config.actor_rollout_ref.rollout.n,
        "data.max_response_length": config.data.max_response_length,
        "tokenizer": hashlib.sha256(vocabulary.encode()).hexdigest()[:16],
    }
