"""What verl divides among devices while a run goes on, and would refuse only then.

verl shares the rows of a step (prompts x responses) among agent loops, devices, mini-batches and
micro-batches, and wants no remainder anywhere. A rollout replica is as many devices as its tensor and data
parallel sizes say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.rerule.replay import ReplayConfig
from recipe.rerule.schema import SettingsError, refuse, shown
from recipe.rerule.training.memory import has_critic, has_reference
from recipe.rerule.training.sizes import largest_divisor

ACTOR, REFERENCE, CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"
"""Where the settings of stage 2's models stand."""
STAGE1 = "engine"
"""Where those of stage 1's engine stand."""
_FSDP = {ACTOR: f"{ACTOR}.fsdp_config", REFERENCE: f"{REFERENCE}.fsdp_config", CRITIC: "critic.fsdp"}
"""Where the part of them stands that FSDP gets; in stage 1 that is the whole section."""
_ROLLOUT = "actor_rollout_ref.rollout"
_TENSOR, _DATA = f"{_ROLLOUT}.tensor_model_parallel_size", f"{_ROLLOUT}.data_parallel_size"
_STEP = f"data.train_batch_size x {_ROLLOUT}.n"
_LONGEST = "data.max_prompt_length + data.max_response_length"
_CRITIC_TOKENS = 32768
"""verl's critic reads values in passes of so many tokens, whatever its settings say."""


def devices_of(config: DictConfig, section: str) -> tuple[int, str]:
    """How many devices the engine has whose settings stand at `section`, and the settings that say so."""
    trainer = config.trainer
    if section == STAGE1:
        return trainer.n_gpus_per_node, "trainer.n_gpus_per_node"
    return trainer.n_gpus_per_node * trainer.nnodes, "trainer.n_gpus_per_node x trainer.nnodes"


def check_stage1(config: DictConfig) -> None:
    """Refuse a step of stage 1 that verl could not share. Raises SettingsError."""
    share_batch(config)
    if config.data.use_dynamic_bsz:
        _check_tokens(config, "data.max_token_len_per_gpu", config.data.max_length, "data.max_length")


def share_batch(config: DictConfig) -> None:
    """Refuse a batch of verl's SFT trainer that devices or passes cannot share. Raises SettingsError."""
    batch, devices = config.data.train_batch_size, _checked(config, STAGE1)
    refuse(
        batch % devices > 0,
        f"data.train_batch_size is {batch}, which {_cannot_share(config, STAGE1)}; set "
        f"trainer.n_gpus_per_node to {largest_divisor(batch, devices)}, or data.train_batch_size to a "
        f"multiple of {devices}",
    )
    if not config.data.use_dynamic_bsz:
        _check_micro_batch(config, "data.micro_batch_size_per_gpu", batch // devices, "batch")


def check_stage2(config: DictConfig) -> None:
    """Refuse a step of stage 2 that verl could not share. Raises SettingsError."""
    data, actor, rollout = config.data, config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    rows, longest = data.train_batch_size * rollout.n, data.max_prompt_length + data.max_response_length
    # verl's trainer makes a step of what it fetches, whatever train_batch_size says.
    refuse(
        data.gen_batch_size not in (None, data.train_batch_size),
        f"data.gen_batch_size is {data.gen_batch_size}, but a step has {data.train_batch_size} prompts "
        "(data.train_batch_size); set that one, and leave data.gen_batch_size null",
    )
    _check_mini_batches(config, ACTOR)
    _check_replicas(config)
    workers = rollout.agent.num_workers
    refuse(
        rows % workers > 0,
        f"{_ROLLOUT}.agent.num_workers is {workers}, which does not divide the {rows} responses of a "
        f"step ({_STEP}); set it to {largest_divisor(rows, workers)}",
    )
    devices = _share_updates(config, ACTOR)
    refuse(
        actor.use_prefix_grouper and data.train_batch_size % devices > 0,
        f"{ACTOR}.use_prefix_grouper is true, but {_cannot_share(config, ACTOR)} the prompts of a step "
        f"(data.train_batch_size={data.train_batch_size}); set it to false",
    )
    refuse(
        actor.use_dynamic_bsz != rollout.log_prob_use_dynamic_bsz,
        f"{_ROLLOUT}.log_prob_use_dynamic_bsz is {shown(rollout.log_prob_use_dynamic_bsz)}, but verl uses "
        f"one engine for log-probs and updates; leave it out, and set {ACTOR}.use_dynamic_bsz",
    )
    log_probs = "log_prob_micro_batch_size_per_gpu"
    if actor.use_dynamic_bsz:
        for key in (f"{ACTOR}.ppo_max_token_len_per_gpu", f"{_ROLLOUT}.log_prob_max_token_len_per_gpu"):
            _check_tokens(config, key, longest, _LONGEST)
    else:
        mini_batch = actor.ppo_mini_batch_size * rollout.n // devices
        _check_micro_batch(config, f"{ACTOR}.ppo_micro_batch_size_per_gpu", mini_batch, "mini-batch")
        _check_micro_batch(config, f"{_ROLLOUT}.{log_probs}", rows // devices, "step")
    if has_reference(config):
        devices = _share_step(config, REFERENCE)
        if config.actor_rollout_ref.ref.log_prob_use_dynamic_bsz:
            _check_tokens(config, f"{REFERENCE}.log_prob_max_token_len_per_gpu", longest, _LONGEST)
        else:
            _check_micro_batch(config, f"{REFERENCE}.{log_probs}", rows // devices, "step")
    if has_critic(config):  # verl makes its passes by tokens alone
        _check_mini_batches(config, CRITIC)
        _share_updates(config, CRITIC)
        _check_tokens(config, "critic.ppo_max_token_len_per_gpu", longest, _LONGEST)
        refuse(
            longest > _CRITIC_TOKENS,
            f"{_LONGEST} are {longest} tokens, but verl's critic reads at most {_CRITIC_TOKENS}; lower one "
            "of them",
        )


def draw_warnings(config: DictConfig, replay: ReplayConfig) -> Iterator[str]:
    """What to say where the devices cannot share the groups of a replay update.

    Raises SettingsError: there is never a group for each device.
    """
    (ranks, _), groups = devices_of(config, ACTOR), replay.groups_per_update
    refuse(
        replay.enable and groups < ranks,
        f"replay.groups_per_update is {groups}, but {ranks} devices share the groups of a replay update "
        f"evenly, so that none would ever be made; set it to {ranks} or more",
    )
    if replay.enable and (left := groups % ranks):
        used = groups - left
        yield (
            f"replay.groups_per_update is {groups}, which {ranks} devices cannot share evenly: a replay "
            f"update draws {used} groups; set it to {used} or {used + ranks}"
        )


def check_heads(config: DictConfig, model: Any) -> None:
    """Refuse a rollout replica whose devices cannot share the attention heads of the model.

    `model`: transformers' configuration of it.

    Raises SettingsError: naming the setting and the heads.
    """
    heads = getattr(model.get_text_config(), "num_attention_heads", None)
    size = config.actor_rollout_ref.rollout.tensor_model_parallel_size
    refuse(
        heads is not None and heads % size > 0,
        f"{_TENSOR} is {size}, but so many devices cannot share the model's attention heads evenly; set it "
        f"to {largest_divisor(heads or 1, size)}",
    )


def _cannot_share(config: DictConfig, section: str) -> str:
    number, keys = devices_of(config, section)
    return f"{number} devices cannot share evenly ({keys})"


def _checked(config: DictConfig, section: str) -> int:
    """The number of devices of an engine; refuses those that cannot share weights as the settings say."""
    number, keys = devices_of(config, section)
    key = f"{_FSDP.get(section, section)}.fsdp_size"
    size = OmegaConf.select(config, key)
    refuse(
        0 < size < number and number % size > 0,
        f"{key} is {size}, which does not divide the {number} devices of {keys}; set it to "
        f"{largest_divisor(number, max(1, size))}",  # -1 stands for all of them
    )
    return number


def _check_replicas(config: DictConfig) -> None:
    """Refuse rollout replicas that leave devices over, or have parts of nodes."""
    rollout, (devices, keys) = config.actor_rollout_ref.rollout, devices_of(config, ACTOR)
    tensor, data = rollout.tensor_model_parallel_size, rollout.data_parallel_size
    node, replica = config.trainer.n_gpus_per_node, tensor * data
    size = f"{_TENSOR} is {tensor}"
    if data > 1:
        size += f" and {_DATA} {data}, which makes replicas of {replica} devices"
    refuse(
        devices % replica > 0,
        f"{size}, which does not divide the {devices} devices of {keys}; set it to a divisor",
    )
    refuse(
        (node % replica > 0 and replica % node > 0) or (data > 1 and min(node, replica) % tensor > 0),
        f"{size}, but a node has {node} (trainer.n_gpus_per_node), and a replica cannot have a part of "
        f"one; set it to {largest_divisor(node, replica)}",
    )


def _check_mini_batches(config: DictConfig, section: str) -> None:
    """`make_iterator` of verl: a step is a whole number of mini-batches."""
    prompts, key = config.data.train_batch_size, f"{section}.ppo_mini_batch_size"
    size = OmegaConf.select(config, key)
    refuse(
        prompts % size > 0,
        f"data.train_batch_size is {prompts}, no multiple of {key}, which is {size}; make them equal for "
        "one optimiser step a training step",
    )


def _share_updates(config: DictConfig, section: str) -> int:
    """The devices of an engine that trains; refuses steps and mini-batches that they cannot share."""
    _share_step(config, section)
    key = f"{section}.ppo_mini_batch_size"
    rows = OmegaConf.select(config, key) * config.actor_rollout_ref.rollout.n
    return _share(config, section, rows, f"{key} x {_ROLLOUT}.n is {rows} rows an optimiser step", key)


def _share_step(config: DictConfig, section: str) -> int:
    """The devices of an engine; refuses steps that they cannot share."""
    rows = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    return _share(config, section, rows, f"{_STEP} is {rows} rows a step", "data.train_batch_size")


def _share(config: DictConfig, section: str, rows: int, what: str, key: str) -> int:
    """The devices of an engine; refuses rows that they cannot share.

    what: the rows for the message; key: of the setting that changes them.
    """
    devices = _checked(config, section)
    multiple = devices // math.gcd(devices, config.actor_rollout_ref.rollout.n)
    refuse(
        rows % devices > 0,
        f"{what}, which {_cannot_share(config, section)}; use {largest_divisor(rows, devices)} devices, or "
        f"set {key} to a multiple of {multiple}",
    )
    return devices


def _check_micro_batch(config: DictConfig, key: str, rows: int, of: str) -> None:
    """`prepare_micro_batches` of verl: the rows of a device are a whole number of micro-batches."""
    size = OmegaConf.select(config, key)
    if size is None:
        raise SettingsError(
            f"{key} is null, but without use_dynamic_bsz verl needs it; set it to a divisor of {rows}, the "
            f"rows of a {of} that each device has"
        )
    refuse(
        rows % size > 0,
        f"{key} is {size}, which does not divide the {rows} row{'s' * (rows > 1)} of a {of} that each "
        f"device has; set it to {largest_divisor(rows, size)}",
    )


def _check_tokens(config: DictConfig, key: str, longest: int, what: str) -> None:
    """`rearrange_micro_batches` of verl: a pass by tokens holds the longest row."""
    size = OmegaConf.select(config, key)
    refuse(
        size < longest,
        f"{key} is {size}, but a row can have {longest} tokens ({what}); set it to {longest} or more",
    )
