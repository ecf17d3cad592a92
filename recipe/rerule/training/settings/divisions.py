"""What verl divides while a run goes on, and would refuse only then.

verl shares the rows of a step (prompts x responses) among agent loops, devices, mini-batches and
micro-batches, and wants no remainder anywhere. `check_stage2` and `check_stage1` list what is looked at.
"""

from __future__ import annotations

import math

from omegaconf import DictConfig, OmegaConf

from recipe.rerule.replay import ReplayConfig
from recipe.rerule.schema import SettingsError, shown
from recipe.rerule.training.settings import devices
from recipe.rerule.training.settings.devices import ACTOR, CRITIC, REFERENCE, STAGE1
from recipe.rerule.training.sizes import largest_divisor

_ROLLOUT = "actor_rollout_ref.rollout"
_STEP = "data.train_batch_size x actor_rollout_ref.rollout.n"
_LONGEST = "data.max_prompt_length + data.max_response_length"
_CRITIC_TOKENS = 32768
"""verl's critic reads values in passes of so many tokens, whatever its settings say."""


def check_stage2(config: DictConfig) -> None:
    """Refuse a step of stage 2 that verl could not share.

    Raises:
        SettingsError: one line naming the setting, its value and what to set.
    """
    _check_fetches(config.data)
    _check_mini_batches(config, ACTOR)
    devices.check_replicas(config)
    _check_loops(config)
    _check_actor(config)
    if _has_reference(config):
        _check_reference(config)
    if _has_critic(config):
        _check_critic(config)


def check_stage1(config: DictConfig) -> None:
    """Refuse a step of stage 1 that verl could not share.

    Raises:
        SettingsError: one line naming the setting, its value and what to set.
    """
    ranks, data = devices.data_parallel(config, STAGE1), config.data
    if data.train_batch_size % ranks:
        fewer = largest_divisor(data.train_batch_size, ranks) * (config.trainer.n_gpus_per_node // ranks)
        raise SettingsError(
            f"data.train_batch_size is {data.train_batch_size}, which {_cannot_share(config, STAGE1)}; set "
            f"trainer.n_gpus_per_node to {fewer}, or data.train_batch_size to a multiple of {ranks}"
        )
    if data.use_dynamic_bsz:
        _check_tokens(config, STAGE1, "data.max_token_len_per_gpu", data.max_length, "data.max_length")
    else:
        _check_micro_batch(config, "data.micro_batch_size_per_gpu", data.train_batch_size // ranks, "batch")


def check_draws(config: DictConfig, replay: ReplayConfig) -> None:
    """Refuse a replay that never has a group for each device.

    Raises:
        SettingsError: naming the setting.
    """
    ranks = devices.data_parallel(config, ACTOR)
    if replay.enable and replay.groups_per_update < ranks:
        raise SettingsError(
            f"replay.groups_per_update is {replay.groups_per_update}, but {ranks} devices share the groups "
            f"of a replay update evenly, so that none would ever be made; set it to {ranks} or more"
        )


def draw_warnings(config: DictConfig, replay: ReplayConfig) -> list[str]:
    """What to say where the devices cannot share the groups of a replay update."""
    ranks = devices.data_parallel(config, ACTOR)
    left = replay.groups_per_update % ranks
    if not replay.enable or not left:
        return []
    used = replay.groups_per_update - left
    return [
        f"replay.groups_per_update is {replay.groups_per_update}, which {ranks} devices cannot share evenly: "
        f"a replay update draws {used} groups; set it to {used} or {used + ranks}"
    ]


def _check_fetches(data: DictConfig) -> None:
    # verl's trainer makes a step of what it fetches, whatever train_batch_size says.
    if data.gen_batch_size not in (None, data.train_batch_size):
        raise SettingsError(
            f"data.gen_batch_size is {data.gen_batch_size}, but a step has {data.train_batch_size} prompts "
            "(data.train_batch_size); set that one, and leave data.gen_batch_size null"
        )


def _check_mini_batches(config: DictConfig, section: str) -> None:
    """`make_iterator` of verl: a step is a whole number of mini-batches."""
    prompts, key = config.data.train_batch_size, f"{section}.ppo_mini_batch_size"
    if prompts % (size := OmegaConf.select(config, key)):
        raise SettingsError(
            f"data.train_batch_size is {prompts}, no multiple of {key}, which is {size}; make them equal for "
            "one optimiser step a training step"
        )


def _check_loops(config: DictConfig) -> None:
    """`AgentLoopManager.generate_sequences` of verl: each worker gets as many responses."""
    rows, workers = _rows(config), config.actor_rollout_ref.rollout.agent.num_workers
    if rows % workers:
        raise SettingsError(
            f"{_ROLLOUT}.agent.num_workers is {workers}, which does not divide the {rows} responses of a "
            f"step ({_STEP}); set it to {largest_divisor(rows, workers)}"
        )


def _check_actor(config: DictConfig) -> None:
    """The on-policy update, and the old log-probs, which verl computes with the actor's engine."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    ranks = _share_updates(config, ACTOR)
    if actor.use_prefix_grouper and config.data.train_batch_size % ranks:
        raise SettingsError(
            f"{ACTOR}.use_prefix_grouper is true, but {_cannot_share(config, ACTOR)} the prompts of a step "
            f"(data.train_batch_size={config.data.train_batch_size}); set it to false"
        )
    if actor.use_dynamic_bsz != (by_tokens := rollout.log_prob_use_dynamic_bsz):
        raise SettingsError(
            f"{_ROLLOUT}.log_prob_use_dynamic_bsz is {shown(by_tokens)}, but verl uses one engine for "
            f"log-probs and updates; leave it out, and set {ACTOR}.use_dynamic_bsz"
        )
    if actor.use_dynamic_bsz:
        _check_row_tokens(config, ACTOR, f"{ACTOR}.ppo_max_token_len_per_gpu")
        _check_row_tokens(config, ACTOR, f"{_ROLLOUT}.log_prob_max_token_len_per_gpu")
    else:
        mini_batch = actor.ppo_mini_batch_size * rollout.n // ranks
        _check_micro_batch(config, f"{ACTOR}.ppo_micro_batch_size_per_gpu", mini_batch, "mini-batch")
        _check_micro_batch(
            config, f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu", _rows(config) // ranks, "step"
        )


def _check_reference(config: DictConfig) -> None:
    """The log-probs of the reference model."""
    ranks = _share_step(config, REFERENCE)
    if config.actor_rollout_ref.ref.log_prob_use_dynamic_bsz:
        _check_row_tokens(config, REFERENCE, f"{REFERENCE}.log_prob_max_token_len_per_gpu")
    else:
        key = f"{REFERENCE}.log_prob_micro_batch_size_per_gpu"
        _check_micro_batch(config, key, _rows(config) // ranks, "step")


def _check_critic(config: DictConfig) -> None:
    """Values and the critic's update, which verl makes in passes by tokens alone."""
    _check_mini_batches(config, CRITIC)
    _share_updates(config, CRITIC)
    _check_row_tokens(config, CRITIC, "critic.ppo_max_token_len_per_gpu")
    if (longest := _longest_row(config)) > _CRITIC_TOKENS:
        raise SettingsError(
            f"{_LONGEST} are {longest} tokens, but verl's critic reads at most {_CRITIC_TOKENS}; lower one "
            "of them"
        )


def _share_updates(config: DictConfig, section: str) -> int:
    """The data-parallel size of an engine that trains; refuses steps and mini-batches it does not divide."""
    _share_step(config, section)
    key, responses = f"{section}.ppo_mini_batch_size", config.actor_rollout_ref.rollout.n
    rows = OmegaConf.select(config, key) * responses
    return _share(
        config, section, rows, f"{key} x actor_rollout_ref.rollout.n is {rows} rows an optimiser step", key
    )


def _share_step(config: DictConfig, section: str) -> int:
    """The data-parallel size of an engine; refuses steps that it does not divide."""
    rows = _rows(config)
    return _share(config, section, rows, f"{_STEP} is {rows} rows a step", "data.train_batch_size")


def _share(config: DictConfig, section: str, rows: int, what: str, key: str) -> int:
    """The data-parallel size of an engine; refuses rows that it does not divide.

    what: the rows for the message; key: of the setting that changes them.
    """
    ranks = devices.data_parallel(config, section)
    if rows % ranks:
        sharing = devices.count(config, section)[0] // ranks
        multiple = ranks // math.gcd(ranks, config.actor_rollout_ref.rollout.n)
        raise SettingsError(
            f"{what}, which {_cannot_share(config, section)}; use {largest_divisor(rows, ranks) * sharing} "
            f"devices, or set {key} to a multiple of {multiple}"
        )
    return ranks


def _check_micro_batch(config: DictConfig, key: str, rows: int, of: str) -> None:
    """`prepare_micro_batches` of verl: the rows of a device are a whole number of micro-batches."""
    size = OmegaConf.select(config, key)
    if size is None:
        raise SettingsError(
            f"{key} is null, but without use_dynamic_bsz verl needs it; set it to a divisor of {rows}, the "
            f"rows of a {of} that each device has"
        )
    if rows % size:
        raise SettingsError(
            f"{key} is {size}, which does not divide the {rows} row{'s' * (rows > 1)} of a {of} that each "
            f"device has; set it to {largest_divisor(rows, size)}"
        )


def _check_row_tokens(config: DictConfig, section: str, key: str) -> None:
    _check_tokens(config, section, key, _longest_row(config), _LONGEST)


def _check_tokens(config: DictConfig, section: str, key: str, longest: int, what: str) -> None:
    """`rearrange_micro_batches` of verl: a pass by tokens holds the longest row."""
    size, (_, sharing) = OmegaConf.select(config, key), devices.sequence_parallel(config, section)
    if size * sharing < longest:
        raise SettingsError(
            f"{key} is {size}, but a row can have {longest} tokens ({what}); set it to "
            f"{-(-longest // sharing)} or more"
        )


def _cannot_share(config: DictConfig, section: str) -> str:
    """What a message says of an engine's devices, or of the groups that share sequences."""
    number, keys = devices.count(config, section)
    ranks = devices.data_parallel(config, section)
    parts = f"{number} devices" if ranks == number else f"{ranks} groups of {number // ranks} devices"
    return f"{parts} cannot share evenly ({keys})"


def _rows(config: DictConfig) -> int:
    return int(config.data.train_batch_size * config.actor_rollout_ref.rollout.n)


def _longest_row(config: DictConfig) -> int:
    return int(config.data.max_prompt_length + config.data.max_response_length)


def _has_reference(config: DictConfig) -> bool:
    """Whether verl builds a reference model; with LoRA it takes the actor without the adapter."""
    actor = config.actor_rollout_ref
    return actor.model.lora_rank == 0 and (actor.actor.use_kl_loss or config.algorithm.use_kl_in_reward)


def _has_critic(config: DictConfig) -> bool:
    # verl's need_critic, which prints a warning each time.
    enabled = config.critic.enable
    return config.algorithm.adv_estimator == "gae" if enabled is None else bool(enabled)
