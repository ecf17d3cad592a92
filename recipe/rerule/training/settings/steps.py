"""The steps of a run, and what its length makes impossible or useless."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from recipe.rerule.replay import ReplayConfig
from recipe.rerule.schema import SettingsError
from recipe.rerule.training.settings.rows import Files, usable


def run_steps(config: DictConfig, files: Files) -> int:
    """How many steps a run on the rows of `files` has.

    Raises:
        SettingsError: the rows end before trainer.total_training_steps; verl would then save nothing, since
            it never reaches its last step.
    """
    trainer, batch = config.trainer, config.data.train_batch_size
    steps = usable(files, config.data) // batch * trainer.total_epochs
    wanted = trainer.total_training_steps
    if wanted is not None and wanted > steps:
        raise SettingsError(
            f"trainer.total_training_steps is {wanted}, but {trainer.total_epochs} epochs of the rows at "
            f"data.train_batch_size={batch} are {steps} steps, so that the last step, which saves the model, "
            "would never come; raise trainer.total_epochs, or lower the steps"
        )
    return steps if wanted is None else wanted


def warm_up_warnings(config: DictConfig, section: str, steps: int) -> list[str]:
    """What to say where the learning rate is 0, or the run ends before the rate is reached.

    section: where the optimiser's settings stand.
    """
    optimizer = OmegaConf.select(config, section)
    if optimizer.lr == 0:
        return [f"{section}.lr is 0: the run changes nothing in the model"]
    warm_up = optimizer.lr_warmup_steps
    if warm_up < steps:
        return []
    return [
        f"{section}.lr_warmup_steps is {warm_up}, but the run has {steps} steps: the learning rate never "
        f"reaches {optimizer.lr:g}; lower it, or make the run longer"
    ]


def replay_warnings(config: DictConfig, replay: ReplayConfig, steps: int) -> list[str]:
    """What to say where no step of the run can replay."""
    if not replay.enable:
        return []
    first = replay.warmup_steps + (replay.start == "after")
    if first > steps:
        return [
            f"replay.warmup_steps is {replay.warmup_steps}, but the run has {steps} steps: replay never "
            "starts; lower it, make the run longer, or set replay.enable=false"
        ]
    offered = steps * config.data.train_batch_size
    if offered < replay.min_groups:
        return [
            f"replay.min_groups is {replay.min_groups}, but all {steps} steps together make {offered} "
            "groups: replay never starts; lower it, or make the run longer"
        ]
    return []


def checkpoint_warnings(trainer: DictConfig) -> list[str]:
    """What to say where stage 2 writes no checkpoint, not even at its last step."""
    if trainer.save_freq != -1:
        return []
    return [
        "trainer.save_freq is -1: no checkpoint is written, so that the trained model is lost; a number "
        "above the run's steps writes one at the last step"
    ]
