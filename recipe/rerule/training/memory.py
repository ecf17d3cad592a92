"""Memory that a LoRA run takes of one device, worked out from the model's sizes and the settings.

Three moments are told apart: the update (and the log-probs, whose passes are longer), sending the adapter to
the rollout engine, and sampling. All numbers are arithmetic on verl 0.9.1's FSDP2 engine and vLLM; none was
measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from recipe.rerule.training import lora

GB = 1e9
CARDS = (40, 80)
"""GB of the cards that `sentences` speaks of."""
CONTEXT, ENGINE_ASLEEP = 2 * GB, 2 * GB
"""Estimates: CUDA's context and the allocator's fragments, of the trainer and of the sleeping engine."""
FLOAT32 = 4
COMPUTE = 2
"""Bytes of a number in bfloat16, in which passes are made and the engine samples."""
UPDATE_LOGITS, LOG_PROB_LOGITS = 12, 10
"""Bytes of a token and vocabulary entry at most: bfloat16 and float32 logits, and gradients of both (update)
or a float32 softmax for the entropy (log-probs)."""
_LAYER = re.compile(r"\.layers\.\d+\.")


@dataclass(frozen=True)
class Sizes:
    """Of a model and its adapter, in numbers.

    Attributes:
        base: weights without the adapter.
        adapter: weights of the adapter.
        outside: those of `base` outside the decoder's layers, such as embeddings and head.
        largest: of the largest tensor.
        hidden, intermediate, layers, vocabulary: as config.json has them.
        key_values: numbers that one layer caches of a token.
    """

    base: int
    adapter: int
    outside: int
    largest: int
    hidden: int
    intermediate: int
    layers: int
    vocabulary: int
    key_values: int


@dataclass(frozen=True)
class Settings:
    """Of a run, as far as they decide memory.

    Attributes:
        devices: that share the weights.
        weight_bytes: of a base weight, by model_dtype; the adapter's have FLOAT32.
        update_tokens, log_prob_tokens: the most of a pass of one device; 0 log-prob tokens without that pass.
        param_offload, optimizer_offload: whether they are on the host while they are not needed.
        merge: whether the engine gets merged weights.
        engine_share: gpu_memory_utilization; None without a rollout engine.
    """

    devices: int
    weight_bytes: int
    update_tokens: int
    log_prob_tokens: int = 0
    param_offload: bool = False
    optimizer_offload: bool = False
    merge: bool = False
    engine_share: float | None = None


def sizes(adapted: Any) -> Sizes:
    """The sizes of a model with its adapter, as `lora.adapted` builds it."""
    text = adapted.get_base_model().config.get_text_config()
    counts = {name: weight.numel() for name, weight in adapted.named_parameters()}
    base = {name: count for name, count in counts.items() if ".lora_" not in name}
    heads = text.num_attention_heads
    head = getattr(text, "head_dim", None) or text.hidden_size // heads
    return Sizes(
        base=sum(base.values()),
        adapter=sum(counts.values()) - sum(base.values()),
        outside=sum(count for name, count in base.items() if not _LAYER.search(name)),
        largest=max(base.values()),
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        layers=text.num_hidden_layers,
        vocabulary=text.vocab_size,
        key_values=2 * (getattr(text, "num_key_value_heads", None) or heads) * head,
    )


def update_bytes(model: Sizes, run: Settings) -> dict[str, float]:
    """Bytes of each part while the model is updated, with gradient checkpointing."""
    tokens, layer = run.update_tokens, (model.base - model.outside) / model.layers
    logits = max(UPDATE_LOGITS * tokens, LOG_PROB_LOGITS * run.log_prob_tokens)
    parts = {
        "base weights": run.weight_bytes * model.base / run.devices,
        # Weights, gradients and AdamW's two moments.
        "adapter and optimizer": 4 * FLOAT32 * model.adapter / run.devices,
        # FSDP2 gathers what is outside the layers, and two layers at a time, in bfloat16.
        "gathered weights": COMPUTE * (model.outside + 2 * layer),
        "kept activations": COMPUTE * tokens * model.hidden * model.layers,
        # Inputs of a layer's linear maps and norms, which the backward pass computes again.
        "a layer's activations": COMPUTE * tokens * (8 * model.hidden + 4 * model.intermediate),
        "logits": float(logits * model.vocabulary),
        "context": CONTEXT,
    }
    return parts | ({} if run.engine_share is None else {"sleeping engine": ENGINE_ASLEEP})


def transfer_bytes(model: Sizes, run: Settings) -> dict[str, float]:
    """Bytes of each part while the engine gets its weights: verl loads the trainer's beside the engine's."""
    moments = 0 if run.optimizer_offload else 2
    parts = {
        "base weights": run.weight_bytes * model.base / run.devices,
        "adapter and optimizer": (1 + moments) * FLOAT32 * model.adapter / run.devices,
        "engine's weights": float(COMPUTE * (model.base + (0 if run.merge else model.adapter))),
        "context": CONTEXT,
        "woken engine": ENGINE_ASLEEP,
    }
    return parts | ({"largest tensor": float(run.weight_bytes * model.largest)} if run.merge else {})


def sampling_bytes(model: Sizes, run: Settings) -> dict[str, float]:
    """Bytes of each part of the trainer that stay on the device while the engine samples."""
    weights, moments = int(not run.param_offload), 0 if run.optimizer_offload else 2
    return {
        "base weights": weights * run.weight_bytes * model.base / run.devices,
        "adapter and optimizer": (weights + moments) * FLOAT32 * model.adapter / run.devices,
        "context": CONTEXT,
    }


def cached_tokens(model: Sizes, run: Settings, card: float) -> int:
    """Tokens of prompts and responses for which the engine has room on a card of so many bytes."""
    weights = COMPUTE * (model.base + (0 if run.merge else model.adapter))
    room = (run.engine_share or 0.0) * card - weights - ENGINE_ASLEEP
    return max(0, int(room // (COMPUTE * model.key_values * model.layers)))


def shortage(model: Sizes, run: Settings, longest: int, card: float) -> str | None:
    """Why a card of so many bytes is too small, in words after "because"; None where it is not.

    Args:
        longest: tokens of the longest prompt and response.
    """
    moments = {"the update": sum(update_bytes(model, run).values())}
    if run.engine_share is not None:
        moments["sending weights"] = sum(transfer_bytes(model, run).values())
        moments["sampling"] = run.engine_share * card + sum(sampling_bytes(model, run).values())
    for moment, needed in moments.items():
        if needed > card:
            return f"{moment} needs {needed / GB:.1f} GB"
    if run.engine_share is not None and cached_tokens(model, run, card) < longest:
        return f"{run.engine_share:g} of it holds the engine's weights and no response of {longest} tokens"
    return None


def sentences(model: Sizes, run: Settings, longest: int) -> list[str]:
    """For a person: bytes by part at each moment, and which cards they fit on."""
    lines = [_of("the update", update_bytes(model, run))]
    if run.engine_share is not None:
        lines.append(_of("sending weights", transfer_bytes(model, run)))
        left = _of("sampling", sampling_bytes(model, run))
        lines.append(f"{left}, and {run.engine_share:g} of the card for the rollout engine")
    return lines + [_fit(model, run, longest, card) for card in CARDS]


def _of(moment: str, parts: Mapping[str, float]) -> str:
    named = ", ".join(f"{name} {size / GB:.1f}" for name, size in parts.items())
    return (
        f"memory of a device, computed and not measured: {moment} {sum(parts.values()) / GB:.1f} GB ({named})"
    )


def _fit(model: Sizes, run: Settings, longest: int, card: int) -> str:
    start = f"memory of a device, computed and not measured: a card of {card} GB"
    if (reason := shortage(model, run, longest, card * GB)) is not None:
        return f"{start} is too small, because {reason}"
    if run.engine_share is None:
        return f"{start} is enough"
    return f"{start} is enough; the engine keeps {cached_tokens(model, run, card * GB):,} tokens at once"


def of_stage1(config: DictConfig) -> list[str]:
    """`sentences` of a resolved stage-1 configuration; none without an adapter."""
    data, engine = config.data, config.engine
    rows = data.max_token_len_per_gpu if data.use_dynamic_bsz else None
    run = Settings(
        devices=config.trainer.n_gpus_per_node,
        weight_bytes=_bytes_of(engine.model_dtype),
        update_tokens=rows or data.micro_batch_size_per_gpu * data.max_length,
        param_offload=engine.param_offload,
        optimizer_offload=engine.optimizer_offload,
    )
    return _said(config.model, run, data.max_length)


def of_stage2(config: DictConfig) -> list[str]:
    """`sentences` of a resolved stage-2 configuration; none without an adapter."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    longest, engine = config.data.max_prompt_length + config.data.max_response_length, actor.fsdp_config
    tokens = [actor.ppo_max_token_len_per_gpu, rollout.log_prob_max_token_len_per_gpu]
    if not actor.use_dynamic_bsz:
        rows = (actor.ppo_micro_batch_size_per_gpu, rollout.log_prob_micro_batch_size_per_gpu)
        tokens = [count * longest for count in rows]
    run = Settings(
        devices=config.trainer.n_gpus_per_node * config.trainer.nnodes,
        weight_bytes=_bytes_of(engine.model_dtype),
        update_tokens=tokens[0],
        log_prob_tokens=tokens[1],
        param_offload=engine.param_offload,
        optimizer_offload=engine.optimizer_offload,
        merge=config.actor_rollout_ref.model.lora.merge,
        engine_share=rollout.gpu_memory_utilization,
    )
    return _said(config.actor_rollout_ref.model, run, longest)


def _said(model: DictConfig, run: Settings, longest: int) -> list[str]:
    if model.lora_rank == 0:
        return []
    try:
        found = sizes(lora.adapted(model))
    except Exception:  # of the model's own code, or transformers'; the run does not need the size
        return [
            "memory of a device: not known, because transformers cannot build the model without its weights"
        ]
    return sentences(found, run, longest)


def _bytes_of(dtype: str | None) -> int:
    """Of a number of verl's model_dtype, which is float32 where nothing is set."""
    return COMPUTE if dtype in ("bf16", "bfloat16", "fp16", "float16") else FLOAT32
