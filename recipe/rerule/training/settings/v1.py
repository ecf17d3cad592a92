"""What only one of verl's two trainers knows: refused, because verl would ignore it or fail late."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from recipe.rerule.schema import SettingsError
from reward.score import PARTS

_SAMPLER = "trainer.v1.sampler"
_FILTER = "algorithm.filter_groups"
_OUR_REWARD = ("pkg://reward.score", "compute_score")
_REWARD_PARTS = ("reward", *PARTS)
"""What groups can be compared by with our reward: verl's name for the reward, and what the reward returns."""


def check(config: DictConfig) -> None:
    """Refuse settings of the trainer that `trainer.use_v1` does not choose, or that ours does not extend.

    Raises:
        SettingsError: one line naming the setting.
    """
    if not config.trainer.use_v1:
        _check_v0(config)
        return
    _check_mode(config.trainer.v1)
    if config.replay.enable:
        _check_sampler(config.trainer.v1.sampler)
    if config.sides.weights != "equal":
        raise SettingsError(
            "sides.weights is by_error, but on verl's V1 trainer the driver has no advantages to weigh; "
            "set it to equal, or trainer.use_v1=false"
        )
    if not config.trainer.balance_batch:
        raise SettingsError(
            "trainer.balance_batch is false, but verl's V1 trainer always gives ranks rows of alike length; "
            "leave it true, or set trainer.use_v1=false"
        )
    if config.algorithm.filter_groups.enable:
        _check_filter(config)


def _check_v0(config: DictConfig) -> None:
    for key in (f"{_FILTER}.enable", f"{_SAMPLER}.sync_refill_failed_groups"):
        if OmegaConf.select(config, key):
            raise SettingsError(
                f"{key} is true, but verl's trainer before V1 ignores it; set trainer.use_v1=true, or leave "
                "it false"
            )


def _check_mode(v1: DictConfig) -> None:
    if v1.trainer_mode != "sync":
        raise SettingsError(
            f"trainer.v1.trainer_mode is {v1.trainer_mode!r}; ReRULE extends verl's synchronous trainer "
            "alone, because replay needs groups of one policy: set it to sync"
        )
    updates = v1.sync.get("parameter_sync_step", 1)
    if updates != 1:
        raise SettingsError(
            f"trainer.v1.sync.parameter_sync_step is {updates}, but ReRULE's extra updates come once a step, "
            "after its only on-policy update; leave it out"
        )


def _check_sampler(sampler: DictConfig) -> None:
    if sampler.custom_sampler.path is not None:
        raise SettingsError(
            f"{_SAMPLER}.custom_sampler.path is {sampler.custom_sampler.path!r}, but replay needs whole "
            "groups of the step, which verl's own sampler gives; set it to null, or replay.enable=false"
        )


def _check_filter(config: DictConfig) -> None:
    groups, reward = config.algorithm.filter_groups, config.reward
    if groups.max_num_gen_batches > 0:
        raise SettingsError(
            f"{_FILTER}.max_num_gen_batches is {groups.max_num_gen_batches}, but verl's V1 trainer ignores "
            f"it; set it to 0 ({_FILTER}.max_inflight_gen_batches bounds what is generated at once)"
        )
    if reward.reward_model.enable and not reward.reward_model.enable_resource_pool:
        raise SettingsError(
            f"{_FILTER}.enable is true, but a reward model on the trainer's devices gives rewards only after "
            "groups are chosen; set reward.reward_model.enable_resource_pool=true"
        )
    function = (reward.custom_reward_function.path, reward.custom_reward_function.name)
    if function == _OUR_REWARD and groups.metric not in _REWARD_PARTS:
        raise SettingsError(
            f"{_FILTER}.metric is {groups.metric!r}, which the reward does not return; set it to one of "
            f"{', '.join(_REWARD_PARTS)}"
        )
