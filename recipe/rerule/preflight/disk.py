"""The disk that the checkpoints of a run take, worked out from the model's configuration."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from recipe.rerule.training import lora, sizes
from recipe.rerule.training.memory import COMPUTE, FLOAT32, GB, bytes_of, has_critic


@dataclass(frozen=True)
class Checkpoints:
    """What a run writes.

    Attributes:
        parts: bytes of each part of verl's `checkpoint.save_contents`; {} where they are not known.
        at_once: checkpoints at the worst moment; 0 where none is written.
    """

    parts: Mapping[str, int]
    at_once: int

    @property
    def most(self) -> int:
        """Bytes at the worst moment."""
        return self.at_once * sum(self.parts.values())

    def __str__(self) -> str:
        if self.at_once == 0:
            return "no checkpoint is written"
        if not self.parts:
            return "the size of a checkpoint is not known"
        line = f"a checkpoint takes about {sum(self.parts.values()) / GB:.3g} GB"
        line += f" ({', '.join(f'{name} {size / GB:.3g}' for name, size in self.parts.items())})"
        return line + (f", up to {self.at_once} at once {self.most / GB:.3g} GB" if self.at_once > 1 else "")


def of_run(config: DictConfig, steps: int, rows: int | None = None) -> Checkpoints:
    """Those of a resolved configuration of either stage or of `recipe.rerule.unlearn`, in so many steps.

    In stage 2 an interim checkpoint and the best one may be there too.

    `rows`: of an epoch; None: those of data.train_files, which `unlearn` has not.
    """
    trainer, frequency = config.trainer, config.trainer.save_freq
    if "actor_rollout_ref" not in config:
        if frequency == "after_each_epoch":
            rows = sizes.count_rows(config.data.train_files) if rows is None else rows
            frequency = rows // config.data.train_batch_size
        contents, dtype = config.checkpoint.save_contents, config.engine.model_dtype
        parts = _parts(config.model, contents, dtype, config.save.weights_dtype)
        return Checkpoints(parts, _at_once(trainer.max_ckpt_to_keep, _saves(frequency, steps)))
    if frequency == -1:
        return Checkpoints({}, 0)
    actor = config.actor_rollout_ref
    contents, dtype = actor.actor.checkpoint.save_contents, actor.actor.fsdp_config.model_dtype
    parts = _parts(actor.model, contents, dtype, config.save.weights_dtype)
    if has_critic(config):
        contents, dtype = config.critic.checkpoint.save_contents, config.critic.fsdp.model_dtype
        critic = _parts(config.critic.model, contents, dtype, "float32")
        parts |= {"critic": sum(critic.values())}
    interim = config.save.minutes is not None and steps > 1
    best = config.save.best and trainer.test_freq > 0
    at_once = _at_once(trainer.max_actor_ckpt_to_keep, _saves(frequency, steps) + interim)
    return Checkpoints(parts, at_once + best)


def warnings(config: DictConfig, steps: int, rows: int | None = None) -> Iterator[str]:
    """Say what the checkpoints of a run of so many steps take; a warning where there is less room.

    Without a checkpoint nothing is said: `settings` has a warning for that. `rows`: as of `of_run`.
    """
    if not (checkpoints := of_run(config, steps, rows)).at_once:
        return
    folder, place = config.trainer.default_local_dir, Path(config.trainer.default_local_dir).absolute()
    while not place.is_dir():
        place = place.parent
    free = shutil.disk_usage(place).free
    print(f"{checkpoints}; {free / GB:.3g} GB are free in {place}", file=sys.stderr, flush=True)
    # verl writes float32 weights first, which are there until they are rounded.
    rounded = config.save.weights_dtype != "float32"
    written = checkpoints.parts.get("hf_model", 0)
    needed = checkpoints.most + rounded * written * FLOAT32 // COMPUTE
    if needed > free:
        yield (
            f"the checkpoints of {folder} need up to {needed / GB:.3g} GB, and only {free / GB:.3g} GB are "
            f"free in {place}; make room, or give another trainer.default_local_dir"
        )


def _saves(frequency: int, steps: int) -> int:
    """Checkpoints that trainer.save_freq gives in so many steps; the last step is always one."""
    return 1 if frequency < 1 else -(-steps // frequency)


def _at_once(kept: int | None, saves: int) -> int:
    """Checkpoints at the worst moment: those kept, and the next one before the oldest goes."""
    return saves if kept is None else min(saves, kept + 1)


def _parts(
    model: DictConfig, contents: Iterable[str], model_dtype: str | None, weights_dtype: str
) -> dict[str, int]:
    """Bytes of each part of verl's `checkpoint.save_contents`; {} where they are not known.

    `weights_dtype`: of the Hugging Face folder, which is save.weights_dtype.
    """
    try:
        count = sum(weight.numel() for weight in lora.empty(model).parameters())
    except Exception:  # of the model's own code, or transformers'; the run does not need the size
        return {}
    of_a_weight = {"model": bytes_of(model_dtype), "optimizer": 2 * FLOAT32}
    of_a_weight["hf_model"] = bytes_of(weights_dtype)
    kept = set(contents) - ({"optimizer"} if model.lora_rank > 0 else set())  # an adapter's is small
    return {name: count * size for name, size in of_a_weight.items() if name in kept}
