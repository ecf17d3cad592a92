"""What a mixed update (`replay.update=mixed`) cannot work with or divide, refused before the start."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from recipe.rerule.replay import ReplayConfig
from recipe.rerule.replay.mixed import fresh_prompts
from recipe.rerule.training.settings import devices
from recipe.rerule.training.settings.declared import shown
from recipe.rerule.training.settings.devices import ACTOR, REFERENCE
from recipe.rerule.training.settings.error import SettingsError

_ROLLOUT = "actor_rollout_ref.rollout"
_MIXED = "replay.update=mixed"


def check(config: DictConfig, replay: ReplayConfig) -> None:
    """Refuse a mixed update that would be another update than the one documented, or fail at a step.

    Raises:
        SettingsError: one line naming the setting, its value and what to set.
    """
    if not replay.enable or replay.update != "mixed":
        return
    _check_parts(config)
    _check_one_step(config)
    if replay.fresh_share < 1:
        _check_fresh(config, replay)


def _check_parts(config: DictConfig) -> None:
    """Parts of verl that know nothing of the stored rows in a batch."""
    if config.trainer.use_v1:
        raise _refuse("trainer.use_v1", True, "is only there with verl's V0 trainer; set it to false")
    if config.algorithm.adv_estimator == "gae" or config.critic.enable:
        key = "critic.enable" if config.critic.enable else "algorithm.adv_estimator"
        raise _refuse(
            key, OmegaConf.select(config, key), "has no values of stored rows; train without a critic"
        )
    for key in ("distillation.enabled", f"{ACTOR}.use_prefix_grouper"):
        if OmegaConf.select(config, key):
            raise _refuse(key, True, "does not know it; set it to false")


def _check_one_step(config: DictConfig) -> None:
    """A mixed update is one optimiser step over the whole batch, before which the policy has not moved."""
    actor = config.actor_rollout_ref.actor
    if actor.ppo_epochs != 1:
        raise _refuse(f"{ACTOR}.ppo_epochs", actor.ppo_epochs, "makes one optimiser step a step; set it to 1")
    if actor.ppo_mini_batch_size != config.data.train_batch_size:
        raise _refuse(
            f"{ACTOR}.ppo_mini_batch_size",
            actor.ppo_mini_batch_size,
            f"makes one optimiser step a step; set it to {config.data.train_batch_size}, which is "
            "data.train_batch_size",
        )


def _check_fresh(config: DictConfig, replay: ReplayConfig) -> None:
    """The prompts that are sampled, and the groups that take the places of the others."""
    prompts, share = config.data.train_batch_size, replay.fresh_share
    fresh = fresh_prompts(replay, prompts)
    if abs(fresh - share * prompts) > 1e-6 or not fresh:
        raise SettingsError(
            f"replay.fresh_share is {share:g}, but {share:g} of the {prompts} prompts of a step "
            f"(data.train_batch_size) is no whole number; set it to {max(1, fresh)}/{prompts}, which is "
            f"{max(1, fresh) / prompts:g}"
        )
    others = prompts - fresh
    for key in ("groups_per_update", "capacity"):
        if getattr(replay, key) < others:
            raise SettingsError(
                f"replay.{key} is {getattr(replay, key)}, but {others} stored groups take the places of the "
                f"prompts that replay.fresh_share={share:g} leaves out; set it to {others} or more"
            )
    _check_division(config, share, fresh, others)


def _check_division(config: DictConfig, share: float, fresh: int, others: int) -> None:
    """What verl divides, with the rows of fewer prompts."""
    rows = fresh * config.actor_rollout_ref.rollout.n
    ranks, reference = devices.data_parallel(config, ACTOR), devices.data_parallel(config, REFERENCE)
    what = f"replay.fresh_share is {share:g}, which makes {rows} responses and {others} stored groups a step"
    for number, wholes, of in (
        (ranks, (rows, others), "devices cannot share evenly"),
        (reference, (rows,), "devices of the reference model cannot share evenly"),
        (config.actor_rollout_ref.rollout.agent.num_workers, (rows,), "agent loops cannot share evenly"),
    ):
        if any(whole % number for whole in wholes):
            raise SettingsError(f"{what}, which {number} {of}; choose another share")
    for key, dynamic, of in (
        (f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu", f"{ACTOR}.use_dynamic_bsz", rows // ranks),
        (
            f"{REFERENCE}.log_prob_micro_batch_size_per_gpu",
            f"{REFERENCE}.log_prob_use_dynamic_bsz",
            rows // reference,
        ),
    ):
        size = OmegaConf.select(config, key)
        if not OmegaConf.select(config, dynamic) and size and of % size:
            raise SettingsError(
                f"{key} is {size}, which does not divide the {of} rows that each device has of a step with "
                f"replay.fresh_share={share:g}; set it to a divisor of {of}"
            )


def _refuse(key: str, value: object, why: str) -> SettingsError:
    return SettingsError(f"{key} is {shown(value)}, but {_MIXED} {why}")
