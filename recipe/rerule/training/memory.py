"""Memory that a run takes, worked out from the model's sizes and the settings.

Of one device: three moments are told apart: the update (and the log-probs, whose passes are longer), sending
the weights to the rollout engine, and sampling. All numbers are arithmetic on verl 0.9.1's FSDP2 engine and
vLLM; none was measured. Of a machine without an accelerator: all that the processes of a run hold together at
the update; docs/gpu.md compares it with what was measured.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from recipe.rerule.platform.log_probs import CHUNK_BYTES
from recipe.rerule.schema import SettingsError
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
FUSED_TOKENS, FUSED_LOGITS = 512, 20
"""Of verl's fused kernels: tokens whose logits exist at once, and bytes of each and vocabulary entry."""
LIBRARIES, PROCESSES = 0.6 * GB, 4.8 * GB
"""Measured on a processor, without the model: of stage 1's one process, and of all that stage 2 starts."""
_LAYER = re.compile(r"\.layers\.\d+\.")


@dataclass(frozen=True)
class Sizes:
    """Of a model and its adapter, in numbers.

    Attributes:
        base: weights without the adapter.
        adapter: weights of the adapter, 0 without one: then the base weights are trained.
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

    @property
    def trained(self) -> int:
        return self.adapter or self.base

    @property
    def frozen(self) -> int:
        return self.base if self.adapter else 0


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
        reference: whether there is a reference model of its own (on the host, where devices are GPUs).
        checkpointing: whether a layer's activations are computed again in the backward pass.
        fused: whether logits exist in chunks only.
    """

    devices: int
    weight_bytes: int
    update_tokens: int
    log_prob_tokens: int = 0
    param_offload: bool = False
    optimizer_offload: bool = False
    merge: bool = False
    engine_share: float | None = None
    reference: bool = False
    checkpointing: bool = True
    fused: bool = False


def sizes(built: Any) -> Sizes:
    """The sizes of a model as `lora.empty` builds it, or `lora.adapted` with its adapter."""
    text = built.config.get_text_config()
    counts = {name: weight.numel() for name, weight in built.named_parameters()}
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


def pass_bytes(model: Sizes, run: Settings, number: int) -> dict[str, float]:
    """Bytes of each part of a pass of the update whose numbers take `number` bytes."""
    tokens, longest = run.update_tokens, max(run.update_tokens, run.log_prob_tokens)
    logits = float(max(UPDATE_LOGITS * tokens, LOG_PROB_LOGITS * run.log_prob_tokens))
    if run.fused:
        logits = float(FUSED_LOGITS * min(FUSED_TOKENS, longest))
    if run.checkpointing:
        activations = {
            "kept activations": number * tokens * model.hidden * model.layers,
            # Inputs of a layer's linear maps and norms, which the backward pass computes again.
            "a layer's activations": number * tokens * (8 * model.hidden + 4 * model.intermediate),
        }
    else:
        activations = {
            "activations": number * tokens * kept_numbers(model.hidden, model.intermediate, model.layers)
        }
    return {**activations, "logits": logits * model.vocabulary}


def kept_numbers(hidden: int, intermediate: int, layers: int) -> int:
    """Numbers of a token that torch keeps for the backward pass of all layers, counted for Llama."""
    return layers * (14 * hidden + 4 * intermediate)


def update_bytes(model: Sizes, run: Settings) -> dict[str, float]:
    """Bytes of each part on a device while the model is updated."""
    layer = (model.base - model.outside) / model.layers
    parts = _frozen(model, run) | {
        # Weights, gradients and AdamW's two moments.
        _trained(model): 4 * FLOAT32 * model.trained / run.devices,
        # FSDP2 gathers what is outside the layers, and two layers at a time, in bfloat16.
        "gathered weights": COMPUTE * (model.outside + 2 * layer),
        **pass_bytes(model, run, COMPUTE),
        "context": CONTEXT,
    }
    return parts | ({} if run.engine_share is None else {"sleeping engine": ENGINE_ASLEEP})


def machine_bytes(model: Sizes, run: Settings, cache: float) -> dict[str, float]:
    """Bytes of each part of a machine without an accelerator while the model is updated, in float32.

    Args:
        cache: bytes of the rollout engine's KV cache.
    """
    parts: dict[str, float] = {
        "weights, gradients and optimizer": FLOAT32 * (model.frozen + 4 * model.trained),
        **pass_bytes(model, run, FLOAT32),
        "processes": LIBRARIES if run.engine_share is None else PROCESSES,
    }
    if run.fused:
        parts["logits"] = (
            4.0 * CHUNK_BYTES
        )  # of recipe/rerule/platform/log_probs.py, and what follows from them
    if run.reference:
        parts["reference"] = FLOAT32 * model.base
    if run.engine_share is not None:
        # The engine keeps its weights as they come and as its kernels read them.
        parts |= {"rollout engine": 2 * FLOAT32 * model.base, "its KV cache": cache}
    return parts


def _frozen(model: Sizes, run: Settings) -> dict[str, float]:
    return {"base weights": run.weight_bytes * model.frozen / run.devices} if model.frozen else {}


def _trained(model: Sizes) -> str:
    return "adapter and optimizer" if model.adapter else "weights and optimizer"


def transfer_bytes(model: Sizes, run: Settings) -> dict[str, float]:
    """Bytes of each part while the engine gets its weights: verl loads the trainer's beside the engine's."""
    moments = 0 if run.optimizer_offload else 2
    parts = _frozen(model, run) | {
        _trained(model): (1 + moments) * FLOAT32 * model.trained / run.devices,
        "engine's weights": float(COMPUTE * (model.base + (0 if run.merge else model.adapter))),
        "context": CONTEXT,
        "woken engine": ENGINE_ASLEEP,
    }
    return parts | ({"largest tensor": float(run.weight_bytes * model.largest)} if run.merge else {})


def sampling_bytes(model: Sizes, run: Settings) -> dict[str, float]:
    """Bytes of each part of the trainer that stay on the device while the engine samples."""
    weights, moments = int(not run.param_offload), 0 if run.optimizer_offload else 2
    frozen = {name: weights * size for name, size in _frozen(model, run).items()}
    trained = (weights + moments) * FLOAT32 * model.trained / run.devices
    return frozen | {_trained(model): trained, "context": CONTEXT}


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


@dataclass(frozen=True)
class Plan:
    """Of a resolved configuration.

    Attributes:
        model: its section.
        run: what decides memory.
        longest: tokens of the longest row.
        tokens: the setting that bounds a pass.
        cache: bytes of the engine's KV cache where there is no accelerator.
    """

    model: DictConfig
    run: Settings
    longest: int
    tokens: str
    cache: float = 0.0


def of_stage1(config: DictConfig) -> Plan:
    """The plan of a resolved stage-1 configuration."""
    data, engine = config.data, config.engine
    tokens = data.micro_batch_size_per_gpu * data.max_length
    if data.use_dynamic_bsz:
        tokens = data.max_token_len_per_gpu
    run = Settings(
        devices=config.trainer.n_gpus_per_node,
        weight_bytes=_bytes_of(engine.model_dtype),
        update_tokens=min(tokens, data.train_batch_size * data.max_length),
        param_offload=engine.param_offload,
        optimizer_offload=engine.optimizer_offload,
        checkpointing=config.model.enable_gradient_checkpointing,
        fused=config.model.use_fused_kernels,
    )
    key = "max_token_len_per_gpu" if data.use_dynamic_bsz else "micro_batch_size_per_gpu"
    return Plan(config.model, run, data.max_length, f"data.{key}")


def of_stage2(config: DictConfig) -> Plan:
    """The plan of a resolved stage-2 configuration."""
    policy, actor, rollout = (config.actor_rollout_ref[name] for name in ("model", "actor", "rollout"))
    longest, engine = config.data.max_prompt_length + config.data.max_response_length, actor.fsdp_config
    tokens = (actor.ppo_max_token_len_per_gpu, rollout.log_prob_max_token_len_per_gpu)
    if not actor.use_dynamic_bsz:
        rows = (actor.ppo_micro_batch_size_per_gpu, rollout.log_prob_micro_batch_size_per_gpu)
        tokens = (rows[0] * longest, rows[1] * longest)
    most = config.data.train_batch_size * rollout.n * longest
    run = Settings(
        devices=config.trainer.n_gpus_per_node * config.trainer.nnodes,
        weight_bytes=_bytes_of(engine.model_dtype),
        update_tokens=min(tokens[0], most),
        log_prob_tokens=min(tokens[1], most),
        param_offload=engine.param_offload,
        optimizer_offload=engine.optimizer_offload,
        merge=policy.lora.merge,
        engine_share=rollout.gpu_memory_utilization,
        reference=actor.use_kl_loss and policy.lora_rank == 0,
        checkpointing=policy.enable_gradient_checkpointing,
        fused=policy.use_fused_kernels,
    )
    key = "ppo_max_token_len_per_gpu" if actor.use_dynamic_bsz else "ppo_micro_batch_size_per_gpu"
    cache = float(os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")) * 2**30
    return Plan(policy, run, longest, f"actor_rollout_ref.actor.{key}", cache)


def said(config: DictConfig, plan: Plan) -> list[str]:
    """For a person: what the run takes, and whether there is so much."""
    try:
        model = _sizes(plan)
    except Exception:  # of the model's own code, or transformers'; the run does not need the size
        return [
            "memory of a device: not known, because transformers cannot build the model without its weights"
        ]
    if config.platform.name != "cpu":
        return sentences(model, plan.run, plan.longest)
    parts = machine_bytes(model, plan.run, plan.cache)
    named = ", ".join(f"{name} {size / GB:.1f}" for name, size in parts.items())
    free = free_bytes()[0]
    return [f"memory: about {sum(parts.values()) / GB:.1f} GB ({named}); {free / GB:.1f} GB are free"]


def warnings(config: DictConfig, plan: Plan) -> list[str]:
    """One line where a run without an accelerator needs more memory than is free.

    Raises:
        SettingsError: it needs more than there is, even with the shortest passes.
    """
    if config.platform.name != "cpu":
        return []
    try:
        parts = machine_bytes(_sizes(plan), plan.run, plan.cache)
    except Exception:  # as above
        return []
    needed, (free, total) = sum(parts.values()), free_bytes()
    if needed <= free:
        return []
    lower = {
        "activations": f"{plan.tokens} or the lengths of rows",
        "logits": plan.tokens,
        "its KV cache": "VLLM_CPU_KVCACHE_SPACE (GiB)",
    }
    largest = max(lower, key=lambda name: parts.get(name, 0.0))
    line = (
        f"the run needs up to {needed / GB:.1f} GB of memory, {free / GB:.1f} GB of {total / GB:.1f} are free"
        f"; lower {lower[largest]} ({largest}: {parts[largest] / GB:.1f} GB), or train a LoRA adapter or a "
        "smaller model"
    )
    passes = sum(parts.get(name, 0.0) for name in ("activations", "kept activations", "logits"))
    if needed - passes > total:
        raise SettingsError(line)
    return [line]


def _sizes(plan: Plan) -> Sizes:
    return sizes(lora.adapted(plan.model) if plan.model.lora_rank else lora.empty(plan.model))


def free_bytes() -> tuple[float, float]:
    """Free and all memory of this machine, or of the container in which this process runs."""
    import psutil

    memory = psutil.virtual_memory()
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (float((group / f"memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):  # no such group, or "max"
        return float(memory.available), float(memory.total)
    return min(memory.available, limit - used), min(memory.total, limit)


def _bytes_of(dtype: str | None) -> int:
    """Of a number of verl's model_dtype, which is float32 where nothing is set."""
    return COMPUTE if dtype in ("bf16", "bfloat16", "fp16", "float16") else FLOAT32
