"""How verl arranges the devices of a run, and arrangements that it would refuse only after the start.

Devices that share a sequence (Ulysses) get the same rows of a step; all others get different ones. A rollout
replica is as many devices as its tensor and data parallel sizes say.
"""

from __future__ import annotations

import math
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.rerule.schema import SettingsError
from recipe.rerule.training.sizes import largest_divisor

ACTOR, REFERENCE, CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"
"""Where the settings of stage 2's models stand."""
STAGE1 = "engine"
"""Where those of stage 1's engine stand."""
_ENGINES = {ACTOR: f"{ACTOR}.fsdp_config", REFERENCE: f"{REFERENCE}.fsdp_config", CRITIC: "critic.fsdp"}
"""Where the part of them stands that FSDP gets; in stage 1 that is the whole section."""
_TENSOR = "actor_rollout_ref.rollout.tensor_model_parallel_size"
_DATA = "actor_rollout_ref.rollout.data_parallel_size"


def count(config: DictConfig, section: str = ACTOR) -> tuple[int, str]:
    """The devices that an engine runs on, and the keys that say so."""
    nodes = 1 if section == STAGE1 else config.trainer.nnodes
    keys = "trainer.n_gpus_per_node" + (" x trainer.nnodes" if section != STAGE1 else "")
    return config.trainer.n_gpus_per_node * nodes, keys


def data_parallel(config: DictConfig, section: str) -> int:
    """How many parts an engine's devices make of the rows of a step.

    Raises:
        SettingsError: the devices cannot be arranged as the settings say.
    """
    devices, _ = count(config, section)
    key, size = sequence_parallel(config, section)
    _require_divisor(config, section, key, size)
    shards = f"{_ENGINES.get(section, section)}.fsdp_size"
    if 0 < (shard := OmegaConf.select(config, shards)) < devices:
        _require_divisor(config, section, shards, shard)
    return devices // size


def sequence_parallel(config: DictConfig, section: str) -> tuple[str, int]:
    """How many devices of an engine share each sequence, and the key that decides it."""
    engine = _ENGINES.get(section, section)
    keys = [f"{engine}.ulysses_sequence_parallel_size"]
    if section in (ACTOR, REFERENCE):
        keys.insert(0, f"{section}.ulysses_sequence_parallel_size")  # above 1 it counts before the engine's
    if OmegaConf.select(config, f"{section}.strategy") == "fsdp_turbo":
        keys.append(f"{engine}.turbo_config.distributed.ulysses_parallel_size")
    sizes = {key: OmegaConf.select(config, key) for key in keys}
    return next(((key, size) for key, size in sizes.items() if size > 1), (keys[0], 1))


def check_replicas(config: DictConfig) -> None:
    """Refuse rollout replicas that leave devices over, or have parts of nodes."""
    rollout, (devices, keys) = config.actor_rollout_ref.rollout, count(config)
    tensor, data, node = (
        rollout.tensor_model_parallel_size,
        rollout.data_parallel_size,
        config.trainer.n_gpus_per_node,
    )
    replica = tensor * data
    size = f"{_TENSOR} is {tensor}"
    if data > 1:
        size += f" and {_DATA} {data}, which makes replicas of {replica} devices"
    if devices % replica:
        raise SettingsError(
            f"{size}, which does not divide the {devices} devices of {keys}; set it to a divisor"
        )
    if (node % replica and replica % node) or (data > 1 and min(node, replica) % tensor):
        raise SettingsError(
            f"{size}, but a node has {node} (trainer.n_gpus_per_node), and a replica cannot have a part of "
            f"one; set it to {largest_divisor(node, replica)}"
        )


def check_heads(config: DictConfig, model: Any, section: str) -> None:
    """Refuse devices that cannot share the attention heads of the model.

    Args:
        model: transformers' configuration of it.
        section: of the engine that trains it.

    Raises:
        SettingsError: naming the setting and the heads.
    """
    text = model.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    if heads is None:
        return
    key, size = sequence_parallel(config, section)
    key_heads = getattr(text, "num_key_value_heads", None) or heads
    if heads % size or (key_heads % size and size % key_heads):
        raise _heads_error(key, size, math.gcd(heads, key_heads))
    if section == ACTOR and heads % (size := config.actor_rollout_ref.rollout.tensor_model_parallel_size):
        raise _heads_error(_TENSOR, size, heads)


def _require_divisor(config: DictConfig, section: str, key: str, size: int) -> None:
    devices, keys = count(config, section)
    if devices % size:
        raise SettingsError(
            f"{key} is {size}, which does not divide the {devices} devices of {keys}; set it to "
            f"{largest_divisor(devices, size)}"
        )


def _heads_error(key: str, size: int, heads: int) -> SettingsError:
    return SettingsError(
        f"{key} is {size}, but so many devices cannot share the model's attention heads evenly; set it to "
        f"{largest_divisor(heads, size)}"
    )
