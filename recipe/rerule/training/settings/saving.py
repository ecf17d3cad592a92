"""What the run will save: settings of `save`, and the disk that its checkpoints need."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from omegaconf import DictConfig

from recipe.rerule import io
from recipe.rerule.training import checkpoint_size, sizes


def say_disk_stage1(config: DictConfig, steps: int) -> None:
    """Say what the checkpoints of a stage 1 take on the disk; warn where there is less room."""
    trainer = config.trainer
    frequency = trainer.save_freq
    if frequency == "after_each_epoch":
        frequency = sizes.count_rows(config.data.train_files) // config.data.train_batch_size
    parts = _parts(config.model, config.checkpoint.save_contents, config.save.weights_dtype)
    saves = checkpoint_size.steps_saved(frequency, steps)
    _say(config, parts, checkpoint_size.most_at_once(trainer.max_ckpt_to_keep, saves))


def say_disk_stage2(config: DictConfig, steps: int) -> None:
    """The same of a stage 2, where an interim checkpoint and the best one may be there too."""
    actor, trainer = config.actor_rollout_ref, config.trainer
    if trainer.save_freq == -1:
        return  # no checkpoint, and a warning that says so
    parts = _parts(actor.model, actor.actor.checkpoint.save_contents, config.save.weights_dtype)
    if config.algorithm.adv_estimator == "gae" or config.critic.enable:
        critic = _parts(config.critic.model, config.critic.checkpoint.save_contents, "float32")
        parts |= {"critic": sum(critic.values())}
    saves = checkpoint_size.steps_saved(trainer.save_freq, steps)
    interim = 1 if config.save.minutes is not None and steps > 1 else 0
    best = 1 if config.save.best and trainer.test_freq > 0 else 0
    at_once = checkpoint_size.most_at_once(trainer.max_actor_ckpt_to_keep, saves + interim)
    _say(config, parts, at_once + best)


def _parts(model: DictConfig, contents: Iterable[str], weights_dtype: str) -> dict[str, int]:
    """Bytes by part; {} where transformers cannot build the model from its configuration."""
    try:
        count = checkpoint_size.parameter_count(os.path.expanduser(model.path), model.trust_remote_code)
    except Exception:  # of the model's own code, or transformers'; the run does not need the size
        return {}
    kept = set(contents) - ({"optimizer"} if model.lora_rank > 0 else set())  # an adapter's is small
    return checkpoint_size.checkpoint_bytes(count, kept, weights_dtype)


def _say(config: DictConfig, parts: Mapping[str, int], at_once: int) -> None:
    folder = config.trainer.default_local_dir
    free, place = checkpoint_size.free_bytes(folder)
    if not parts:
        known = (
            f"the size of a checkpoint is not known; {free / checkpoint_size.GB:.3g} GB are free in {place}"
        )
        print(known, file=sys.stderr, flush=True)
        return
    print(checkpoint_size.sentence(parts, at_once, free, place), file=sys.stderr, flush=True)
    needed = at_once * sum(parts.values()) + checkpoint_size.draft_bytes(parts, config.save.weights_dtype)
    if needed > free:
        io.warn(
            f"the checkpoints of {folder} need up to {needed / checkpoint_size.GB:.3g} GB, and only "
            f"{free / checkpoint_size.GB:.3g} GB are free in {place}; make room, or give another "
            "trainer.default_local_dir"
        )
