"""Memory that a run takes, worked out from the model's sizes and the settings.

Of one device three moments are told apart: the update (and the log-probs, whose passes are longer), sending
the weights to the rollout engine, and sampling. All numbers are arithmetic on verl 0.9.1's FSDP2 engine and
vLLM; none was measured. Of a machine without an accelerator: all that the processes of a run hold together at
the update; docs/gpu.md compares it with what was measured.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.rerule.platform.log_probs import CHUNK_BYTES
from recipe.rerule.schema import SettingsError
from recipe.rerule.training import lora

GB = 1e9
CARDS, DEVICES = (24, 40, 80), (1, 2, 4, 8)
"""GB of the cards, and numbers of devices, that `said` speaks of."""
READY = ("full_2gpu", "full_1gpu", "lora_1gpu", "lora_24gb")
"""Settings for fewer cards, in the order in which `table` tries them: files of config/common."""
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
UPDATE, SENDING, SAMPLING = "the update", "sending weights", "sampling"
_GROUPS, _GROUPS_OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_CONFIGS = Path(__file__).resolve().parents[1] / "config"
_LAYER = re.compile(r"\.layers\.\d+\.")

Parts = dict[str, float]
"""Bytes of each part."""


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
        """Weights that are trained."""
        return self.adapter or self.base

    @property
    def frozen(self) -> int:
        """Base weights that are not trained."""
        return self.base if self.adapter else 0


@dataclass(frozen=True)
class Run:
    """What decides the memory of a run.

    Attributes:
        devices: that share the weights of one copy.
        weight_bytes: of a base weight, by model_dtype; the adapter's have FLOAT32.
        update_tokens, log_prob_tokens: the most of a pass of one device; 0 log-prob tokens without that pass.
        longest: tokens of the longest row.
        tokens_key: the setting that bounds a pass.
        param_offload, optimizer_offload: whether they are on the host while they are not needed.
        on_host: whether weights, gradients and optimizer stay there, and are updated there (offload_policy).
        merge: whether the engine gets merged weights.
        engine_share: gpu_memory_utilization; None without a rollout engine.
        engine_devices: that share a copy of the engine's weights (tensor_model_parallel_size).
        on_machine: devices of one machine.
        reference: how many models are only compared with (on the host, where devices are GPUs).
        critic: of the numbers of each weight of a critic, those that stay on the devices while it is not
            updated: its weight, AdamW's two; None without a critic.
        keeps: whether a copy of the trained weights is kept on the host (stop=signal).
        checkpointing: whether a layer's activations are computed again in the backward pass.
        fused: whether logits exist in chunks only.
    """

    devices: int
    weight_bytes: int
    update_tokens: int
    log_prob_tokens: int = 0
    longest: int = 0
    tokens_key: str = ""
    param_offload: bool = False
    optimizer_offload: bool = False
    on_host: bool = False
    merge: bool = False
    engine_share: float | None = None
    engine_devices: int = 1
    on_machine: int = 1
    reference: int = 0
    critic: int | None = None
    keeps: bool = False
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


def kept_numbers(hidden: int, intermediate: int, layers: int) -> int:
    """Numbers of a token that torch keeps for the backward pass of all layers, counted for Llama."""
    return layers * (14 * hidden + 4 * intermediate)


def _pass(model: Sizes, run: Run, number: int) -> Parts:
    """Of a pass of the update whose numbers take `number` bytes."""
    tokens, longest = run.update_tokens, max(run.update_tokens, run.log_prob_tokens)
    logits = max(UPDATE_LOGITS * tokens, LOG_PROB_LOGITS * run.log_prob_tokens)
    if run.fused:
        logits = FUSED_LOGITS * min(FUSED_TOKENS, longest)
    of_token = {"activations": kept_numbers(model.hidden, model.intermediate, model.layers)}
    if run.checkpointing:
        # Of a layer the inputs of its linear maps and norms, which the backward pass computes again.
        layer = 8 * model.hidden + 4 * model.intermediate
        of_token = {"kept activations": model.hidden * model.layers, "a layer's activations": layer}
    kept: Parts = {name: number * tokens * numbers for name, numbers in of_token.items()}
    return kept | {"logits": float(logits * model.vocabulary)}


def moments(model: Sizes, run: Run) -> dict[str, Parts]:
    """Bytes of each part on a device at each moment; while the engine samples, those of the trainer alone."""
    frozen: Parts = {"base weights": run.weight_bytes * model.frozen / run.devices} if model.frozen else {}
    trained = "adapter and optimizer" if model.adapter else "weights and optimizer"
    of_one = FLOAT32 * model.trained / run.devices
    adam = 0 if run.optimizer_offload else 2
    layer = (model.base - model.outside) / model.layers
    held: Parts = frozen | {trained: 4 * of_one}  # weights, gradients and AdamW's two moments
    if run.on_host:
        frozen, of_one = {}, 0.0
        # Copies of the weights that are gathered, and of their gradients on the way back.
        held = {"weights and gradients in transit": 2 * FLOAT32 * max(model.outside, 2 * layer)}
    critic: Parts = {}
    if run.critic is not None:
        held = held | {"critic": 4.0 * FLOAT32 * model.base / run.devices}
        critic = {"critic": FLOAT32 * run.critic * model.base / run.devices}
    update: Parts = held | {
        # FSDP2 gathers what is outside the layers, and two layers at a time, in bfloat16.
        "gathered weights": COMPUTE * (model.outside + 2 * layer),
        **_pass(model, run, COMPUTE),
        "context": CONTEXT,
    }
    if run.engine_share is None:
        return {UPDATE: update}
    # verl loads the trainer's weights beside the engine's.
    sending = frozen | {
        trained: (1 + adam) * of_one,
        **critic,
        "engine's weights": _engine_weights(model, run),
        "context": CONTEXT,
        "woken engine": ENGINE_ASLEEP,
    }
    if run.merge or run.on_host:
        sending["largest tensor"] = float(run.weight_bytes * model.largest)
    there = int(not run.param_offload)
    sampling = {name: there * size for name, size in frozen.items()} | critic
    return {
        UPDATE: update | {"sleeping engine": ENGINE_ASLEEP},
        SENDING: sending,
        SAMPLING: sampling | {trained: (there + adam) * of_one, "context": CONTEXT},
    }


def _engine_weights(model: Sizes, run: Run) -> float:
    return COMPUTE * (model.base + (0 if run.merge else model.adapter)) / run.engine_devices


def machine_bytes(model: Sizes, run: Run) -> Parts:
    """Of a machine without an accelerator while the model is updated, in float32.

    Its devices share one copy of the weights. Each has its own passes and processes, and `engine_devices` of
    them have a rollout engine together.
    """
    devices = run.on_machine
    parts: Parts = {
        "weights, gradients and optimizer": FLOAT32 * (model.frozen + 4 * model.trained),
        **{name: devices * size for name, size in _pass(model, run, FLOAT32).items()},
        "processes": devices * (LIBRARIES if run.engine_share is None else PROCESSES),
    }
    if run.fused:
        parts["logits"] = devices * 4.0 * CHUNK_BYTES  # of platform/log_probs.py, and what follows from them
    if run.keeps:
        parts["kept weights"] = float(FLOAT32 * model.trained)
    if run.critic is not None:
        parts["critic"] = 4.0 * FLOAT32 * model.base
    if run.reference:
        parts["reference"] = float(run.reference * FLOAT32 * model.base)
    if run.engine_share is not None:
        # The engine keeps its weights as they come and as its kernels read them.
        cache = float(os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")) * 2**30
        engines = max(1, devices // run.engine_devices)
        parts |= {"rollout engine": engines * 2.0 * FLOAT32 * model.base, "its KV cache": engines * cache}
    return parts


def host_bytes(model: Sizes, run: Run) -> Parts:
    """What one copy of the weights holds in the memory of its machine with `on_host`."""
    weights = run.weight_bytes * model.frozen + 4.0 * FLOAT32 * model.trained
    parts: Parts = {"weights, gradients and optimizer": weights}
    if run.keeps:
        parts["kept weights"] = float(FLOAT32 * model.trained)
    if run.reference:
        parts["reference"] = float(run.reference * COMPUTE * model.base)
    return parts


def cached_tokens(model: Sizes, run: Run, card: float) -> int:
    """Tokens of prompts and responses for which the engine has room on a card of so many bytes."""
    room = (run.engine_share or 0.0) * card - _engine_weights(model, run) - ENGINE_ASLEEP
    return max(0, int(room // (COMPUTE * model.key_values * model.layers / run.engine_devices)))


def shortage(model: Sizes, run: Run, card: float) -> str | None:
    """Why a card of so many bytes is too small, in words after "because"; None where it is not."""
    for moment, parts in moments(model, run).items():
        needed = sum(parts.values()) + ((run.engine_share or 0) * card if moment == SAMPLING else 0)
        if needed > card:
            return f"{moment} needs {needed / GB:.1f} GB"
    if run.engine_share is not None and cached_tokens(model, run, card) < run.longest:
        return (
            f"{run.engine_share:g} of it holds the engine's weights and no response of {run.longest} tokens"
        )
    return None


def said(config: DictConfig) -> list[str]:
    """For a person: what a run of a resolved configuration takes, and whether there is so much."""
    run, model = of_run(config), model_sizes(config)
    if model is None:
        return [
            "memory of a device: not known, because transformers cannot build the model without its weights"
        ]
    if config.platform.name == "cpu":
        parts = machine_bytes(model, run)
        return [f"memory: about {_named(parts)}; {free_bytes()[0] / GB:.1f} GB are free"]
    lines = [f"{moment} {_named(parts)}" for moment, parts in moments(model, run).items()]
    if run.engine_share is not None:
        lines[-1] += f", and {run.engine_share:g} of the card for the rollout engine"
    cards = {f"a card of {card} GB": card * GB for card in CARDS}
    if (here := card_bytes()) is not None:
        cards[f"the card that is here ({here / GB:.1f} GB)"] = here
    for name, card in cards.items():
        if (reason := shortage(model, run, card)) is not None:
            lines.append(f"{name} is too small, because {reason}")
        elif run.engine_share is None:
            lines.append(f"{name} is enough")
        else:
            tokens = cached_tokens(model, run, card)
            lines.append(f"{name} is enough; the engine keeps {tokens:,} tokens at once")
    found = [f"memory of a device, computed and not measured: {line}" for line in lines]
    if run.on_host:
        held = _named(host_bytes(model, run))
        found.insert(0, f"memory of a machine's processor, computed and not measured: {held}")
    return found + table(config, model)


def table(config: DictConfig, model: Sizes) -> list[str]:
    """What fits a card, by numbers of devices: the settings as they are, or else the first of READY."""
    tried = {"as set": (model, of_run(config))}
    folder = _CONFIGS / ("common" if "actor_rollout_ref" in config else "stage1/common")
    for name in READY:
        if (folder / f"{name}.yaml").is_file() and (name.startswith("lora") or not model.adapter):
            changed = copy.deepcopy(config)
            OmegaConf.set_struct(changed, False)
            for part in ("lora_1gpu", name) if name == "lora_24gb" else (name,):
                changed.merge_with(OmegaConf.load(folder / f"{part}.yaml"))
            if (sized := model_sizes(changed)) is not None:
                tried[name] = (sized, of_run(changed))

    def first_fitting(card: int, devices: int) -> str:
        for name, (sized, run) in tried.items():
            on_devices = replace(run, devices=devices, engine_devices=min(run.engine_devices, devices))
            if shortage(sized, on_devices, card * GB) is None:
                return name
        return "nothing"

    rows = [["card", *(f"{number} GPU{'s' * (number > 1)}" for number in DEVICES)]]
    rows += [[f"{card} GB", *(first_fitting(card, number) for number in DEVICES)] for card in CARDS]
    lines = [f"{card:10}{''.join(f'{cell:11}' for cell in cells)}".rstrip() for card, *cells in rows]
    title = "what fits, computed and not measured: these settings (as set), or with +common=NAME and the GPUs"
    return [title, *lines]


def card_bytes() -> float | None:
    """Memory of the first GPU that torch sees here; None where it sees none."""
    import torch

    if not torch.cuda.is_available():
        return None
    return float(torch.cuda.get_device_properties(0).total_memory)


def _named(parts: Mapping[str, float]) -> str:
    named = ", ".join(f"{name} {size / GB:.1f}" for name, size in parts.items())
    return f"{sum(parts.values()) / GB:.1f} GB ({named})"


def of_run(config: DictConfig, group: int = 1, frozen: int = 0) -> Run:
    """What decides the memory of a resolved configuration of either stage, or of `recipe.rerule.unlearn`.

    `group`: rows that pass together, `frozen`: models that are only compared with, both of `unlearn`.
    """
    data = config.data
    if "actor_rollout_ref" not in config:
        key = "max_token_len_per_gpu" if data.use_dynamic_bsz else "micro_batch_size_per_gpu"
        tokens = data[key] if data.use_dynamic_bsz else data[key] * group * data.max_length
        return Run(
            devices=config.trainer.n_gpus_per_node,
            weight_bytes=bytes_of(config.engine.model_dtype),
            update_tokens=min(tokens, data.train_batch_size * group * data.max_length),
            on_machine=config.trainer.n_gpus_per_node,
            reference=frozen,
            keeps=OmegaConf.select(config, "stop") == "signal",
            longest=data.max_length,
            tokens_key=f"data.{key}",
            param_offload=config.engine.param_offload,
            optimizer_offload=config.engine.optimizer_offload,
            on_host=config.engine.offload_policy,
            checkpointing=config.model.enable_gradient_checkpointing,
            fused=config.model.use_fused_kernels,
        )
    policy, actor, rollout = (config.actor_rollout_ref[name] for name in ("model", "actor", "rollout"))
    longest, engine = data.max_prompt_length + data.max_response_length, actor.fsdp_config
    key, tokens = "ppo_max_token_len_per_gpu", rollout.log_prob_max_token_len_per_gpu
    by_tokens = actor.use_dynamic_bsz
    if not by_tokens:
        key, tokens = "ppo_micro_batch_size_per_gpu", rollout.log_prob_micro_batch_size_per_gpu * longest
    most = data.train_batch_size * rollout.n * longest
    devices = config.trainer.n_gpus_per_node * config.trainer.nnodes
    critic = None
    if has_critic(config):
        critic = int(not config.critic.fsdp.param_offload) + 2 * int(not config.critic.fsdp.optimizer_offload)
    return Run(
        devices=min(devices, engine.fsdp_size) if engine.fsdp_size > 0 else devices,
        weight_bytes=bytes_of(engine.model_dtype),
        update_tokens=min(actor[key] * (1 if by_tokens else longest), most),
        log_prob_tokens=min(tokens, most),
        longest=longest,
        tokens_key=f"actor_rollout_ref.actor.{key}",
        param_offload=engine.param_offload,
        optimizer_offload=engine.optimizer_offload,
        on_host=engine.offload_policy,
        merge=policy.lora.merge,
        engine_share=rollout.gpu_memory_utilization,
        engine_devices=rollout.tensor_model_parallel_size,
        on_machine=config.trainer.n_gpus_per_node,
        reference=int(has_reference(config)),
        critic=critic,
        checkpointing=policy.enable_gradient_checkpointing,
        fused=policy.use_fused_kernels,
    )


def has_critic(config: DictConfig) -> bool:
    """verl's need_critic, which prints a warning each time."""
    enabled = config.critic.enable
    return config.algorithm.adv_estimator == "gae" if enabled is None else bool(enabled)


def has_reference(config: DictConfig) -> bool:
    """Whether verl builds a reference model; with LoRA it takes the actor without the adapter."""
    actor = config.actor_rollout_ref
    return actor.model.lora_rank == 0 and (actor.actor.use_kl_loss or config.algorithm.use_kl_in_reward)


def warnings(config: DictConfig, group: int = 1, frozen: int = 0) -> Iterator[str]:
    """What to say where a run needs more memory than is free, or than the GPU that is here has.

    Args:
        group, frozen: as of `of_run`.

    Raises:
        SettingsError: a run without an accelerator needs more than there is, even with the shortest passes.
    """
    run, card = of_run(config, group, frozen), None if config.platform.name == "cpu" else card_bytes()
    if config.platform.name != "cpu" and card is None:
        return
    if (model := model_sizes(config)) is None:
        return
    if card is not None:
        if (reason := shortage(model, run, card)) is not None:
            yield (
                f"the GPU here has {card / GB:.1f} GB, which is too small by what is computed, because "
                f"{reason}; `check` of the same settings says which devices are enough; or train a LoRA "
                "adapter (+common=lora_1gpu, with about ten times the learning rate) or a smaller model, or "
                "keep the optimizer in the host's memory (+common=full_2gpu, full_1gpu)"
            )
        needed, total = sum(host_bytes(model, run).values()), free_bytes()[1]
        if run.on_host and needed > total:
            yield (
                f"with offload_policy weights, gradients and optimizer need {needed / GB:.0f} GB of this "
                f"machine's memory, which has {total / GB:.0f} GB; use more GPUs, or a smaller model"
            )
        return
    parts = machine_bytes(model, run)
    needed, (free, total) = sum(parts.values()), free_bytes()
    if needed <= free:
        return
    lower = {
        "activations": f"{run.tokens_key} or the lengths of rows",
        "logits": run.tokens_key,
        "its KV cache": "VLLM_CPU_KVCACHE_SPACE (GiB)",
    }
    largest = max(lower, key=lambda name: parts.get(name, 0.0))
    line = (
        f"the run needs up to {needed / GB:.1f} GB of memory, {free / GB:.1f} GB of {total / GB:.1f} are free"
        f"; lower {lower[largest]} ({largest}: {parts[largest] / GB:.1f} GB), or train a LoRA adapter or a "
        "smaller model"
    )
    if needed - sum(parts.get(name, 0.0) for name in ("activations", "kept activations", "logits")) > total:
        raise SettingsError(line)
    yield line


def model_sizes(config: DictConfig) -> Sizes | None:
    """Of the model of a resolved configuration; None where it cannot be built without its weights."""
    model = config.actor_rollout_ref.model if "actor_rollout_ref" in config else config.model
    try:
        return sizes(lora.adapted(model) if model.lora_rank else lora.empty(model))
    except Exception:  # of the model's own code, or transformers'; the run does not need the size
        return None


def free_bytes() -> tuple[float, float]:
    """Free and all memory of this machine, or of the smallest of the groups in which this process runs.

    Such a group (cgroup) is a container or a job. Files that were read and are still in memory count as free.
    """
    import psutil

    memory = psutil.virtual_memory()
    free, total = float(memory.available), float(memory.total)
    for group, most, now, files in _groups():
        try:
            limit, used = (float((group / f"memory.{name}").read_text()) for name in (most, now))
            counted = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such group, or "max"
            continue
        free, total = min(free, limit - used + float(counted.get(files, 0))), min(total, limit)
    return free, total


def _groups() -> Iterator[tuple[Path, str, str, str]]:
    """Folders of this process's groups and their parents, and what version 2 or 1 of cgroup calls the limit,
    what is used, and the files in it."""
    for line in _GROUPS_OF_PROCESS.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = _GROUPS, ("max", "current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = _GROUPS / "memory", ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
        else:
            continue
        for place in (Path(path), *Path(path).parents):
            yield root / place.relative_to("/"), *names


def bytes_of(dtype: str | None) -> int:
    """Of a number of verl's model_dtype or of save.weights_dtype: float32 where nothing is set."""
    return COMPUTE if dtype in ("bf16", "bfloat16", "fp16", "float16") else FLOAT32
