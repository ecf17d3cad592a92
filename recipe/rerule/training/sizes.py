"""Sizes that follow from others, as resolvers for the configuration of both stages.

From the number of rows: all of `experiment=custom`. From the number of devices: micro-batches, everywhere.
docs/own_data.md#sizes says what each value rests on. A value that is given on the command line counts, and
those that depend on it follow: with `data.train_batch_size=4` an epoch has more steps, so fewer epochs do.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from recipe.rerule.schema import shown

MOST_ROWS = 65536
"""More rows than a device can hold in one pass."""
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions")
PLAIN_HEADS = frozenset(
    ("llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "smollm3", "gemma", "gemma2", "gemma3_text")
)
"""Types of models whose logits are one matrix times what the decoder gives, where nothing caps them."""
MOST_PASS_TOKENS = 16384
"""verl's default, which does not look at the model."""
PASS_BYTES = {"cpu": 10**9, "gpu": 10 * 10**9}
"""Activations and logits of a pass; on a processor longer passes are no faster."""
HUB_SECONDS = 10
"""How long the Hub may take to say how large a model is."""
SMALLEST_BATCH = 8
STAGE1_STEPS, STAGE1_WARMUP = 30, 20
STAGE1_SAMPLINGS = 4
STAGE1_RATE_SUMS = {2e6: 6e-3, 1.35e8: 3e-4, 1e9: 9e-5}
"""Rate times steps of stage 1 by the number of parameters. 2 million: the embedded world's 2e-4 over 30
steps; 135 million: SmolLM2's 1e-5 over 30 steps; from a billion on: RULE's on one person, 4e-7 over 225."""
STAGE1_LEAST_RATE = 4e-7
"""RULE's, over however many steps."""
STAGE2_RATES = {2e6: 1e-4, 1.35e8: 3e-5, 1e9: 2e-6}
"""Stage 2's rate by the number of parameters. 135 million: see docs/real_model.md; from a billion on:
the paper's."""
VALIDATIONS = 6
REPLAY_WARMUP, REPLAY_CAPACITY, THRESHOLD_STEPS = 15, 1200, 4


def _require_count(key: str, value: object, otherwise: str = "") -> None:
    """Refuse a value of the setting `key` that no size can follow from. Raises ValueError."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{key} is {shown(value)}; set it to a whole number >= 1{otherwise}")


def batch_size(rows: int, largest: int) -> int:
    """Prompts a step: the power of two that is at most a quarter of the rows, from 8 to `largest`.

    Never more than there are rows.
    """
    wanted = min(largest, rows, max(SMALLEST_BATCH, rows // 4))
    return 1 << (wanted.bit_length() - 1)


def epochs(rows: int, batch: int, least_steps: int, least_epochs: int) -> int:
    """Passes over the rows that make at least so many steps; the rows over a whole batch are left out.

    Raises ValueError: the batch, data.train_batch_size, is no count.
    """
    _require_count("data.train_batch_size", batch)
    steps_per_epoch = max(1, rows // batch)
    return max(least_epochs, -(-least_steps // steps_per_epoch))


def planned_rows(config: DictConfig) -> int:
    """Rows that a run of either stage trains on. Raises ValueError as `count_rows`."""
    return count_rows(config.data.train_files, config.data.get("train_max_samples"))


def planned_steps(config: DictConfig) -> int:
    """Training steps of a run of either stage, which the user may give (trainer.total_training_steps).

    Raises ValueError: one of the settings is no count, or a reason why one of them cannot be derived.
    """
    try:
        rows, batch, trainer = planned_rows(config), config.data.train_batch_size, config.trainer
        passes, total = trainer.total_epochs, trainer.total_training_steps
    except InterpolationResolutionError as error:
        raise ValueError(reason(error)) from None
    _require_count("data.train_batch_size", batch)
    _require_count("trainer.total_epochs", passes)
    if total is None:
        return int(passes * (rows // batch))
    _require_count("trainer.total_training_steps", total, ", or null (by total_epochs)")
    return int(total)


def reason(error: InterpolationResolutionError) -> str:
    """Why a size cannot be derived, without OmegaConf's words before it."""
    return str(error).split("\n")[0].removeprefix("ValueError raised while resolving interpolation: ")


def stage1_warmup(run_steps: int) -> int:
    """Warm-up steps of stage 1: a tenth of the run, at most RULE's 20."""
    return min(STAGE1_WARMUP, run_steps // 10)


def stage1_rate(run_steps: int, parameters: int | None, factor: float = 1.0) -> float:
    """Stage 1's learning rate times `factor`: smaller models take larger ones, and so do fewer steps.

    Below 30 steps it is that of 30. parameters: of the model; None, where they are not known, counts as a
    billion and more.
    """
    total = _by_parameters(STAGE1_RATE_SUMS, parameters)
    return max(STAGE1_LEAST_RATE, total / max(STAGE1_STEPS, run_steps)) * factor


def stage2_rate(parameters: int | None, factor: float = 1.0) -> float:
    """Stage 2's learning rate times `factor`; `parameters` as of `stage1_rate`."""
    return float(f"{_by_parameters(STAGE2_RATES, parameters) * factor:.3g}")


def _by_parameters(table: Mapping[float, float], parameters: int | None) -> float:
    """The table's value, on a straight line between its logarithms; at its ends the end's."""
    size = max(table) if parameters is None else parameters
    sizes, values = np.log([*table]), np.log([*table.values()])
    return float(f"{np.exp(np.interp(np.log(size), sizes, values)):.3g}")


def parameters(model: str | None) -> int | None:
    """Parameters of a model, by the headers of its safetensors in a folder, or by its name on the Hub.

    None where its folder holds no such files, or one that is damaged (`preflight` refuses that, and names the
    file), and where neither the Hub nor its cache knows the name.
    """
    folder = Path(str(model)).expanduser()
    return _hub_parameters(str(model)) if model and not folder.exists() else _parameters_in(folder)


def _parameters_in(folder: Path) -> int | None:
    from safetensors import SafetensorError, safe_open

    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy") as weights:
                total += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
        except (SafetensorError, OSError):
            return None
    return total or None


@functools.cache
def _hub_parameters(name: str) -> int | None:
    """By the Hub's own count, so that it is the same before the weights are downloaded; else by the cache."""
    from httpx import HTTPError
    from huggingface_hub import HfApi, snapshot_download

    try:
        counted = HfApi().model_info(name, expand=["safetensors"], timeout=HUB_SECONDS).safetensors
        return counted.total if counted else None
    except (HTTPError, OSError, ValueError):
        try:
            return _parameters_in(Path(snapshot_download(name, local_files_only=True)))
        except (OSError, ValueError):
            return None


def sampling_interval(run_steps: int) -> int:
    """Steps of stage 1 between two samplings: a quarter of the run, rounded up."""
    return max(1, -(-run_steps // STAGE1_SAMPLINGS))


def beside(files: str | Sequence[str] | None) -> str | None:
    """train.parquet in the folder of stage 1's rows.

    Raises ValueError: there is none.
    """
    if files is None:
        return None
    first = Path(files if isinstance(files, str) else files[0])
    if not (path := first.with_name("train.parquet")).is_file():
        raise ValueError(
            f"{first.parent} has no train.parquet, stage 2's rows, of which stage 1 samples responses; give "
            "data.prompt_files=PATH, or data.prompt_files=null data.retain_share=0 stop=none"
        )
    return str(path)


def replay_warmup(run_steps: int) -> int:
    """Steps before the first replay update: a quarter of the run, at most 15, as in the paper's runs on one
    person."""
    return min(REPLAY_WARMUP, run_steps // 4)


def replay_capacity(run_steps: int, batch: int) -> int:
    """Groups in the buffer: all that the run samples, at most 1,200, as in the paper's runs."""
    return max(1, min(REPLAY_CAPACITY, run_steps * batch))


def test_freq(run_steps: int) -> int:
    """Steps between validations, so that a run has about six."""
    return max(1, round(run_steps / VALIDATIONS))


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit` (and at most MOST_ROWS)."""
    return next(size for size in range(min(number, limit, MOST_ROWS), 0, -1) if number % size == 0)


def mini_batch(batch: int, updates: int) -> int:
    """Prompts of an optimiser step of stage 2, so that a step of `batch` prompts makes `updates` or more.

    Raises ValueError: the batch, data.train_batch_size, is no count.
    """
    _require_count("data.train_batch_size", batch)
    return largest_divisor(batch, max(1, batch // updates))


def engine_length(*, _root_: DictConfig) -> float | None:
    """Tokens that the rollout engine plans for: the longest prompt and response, or all that the model reads.

    None where one of them is no count of tokens: `schema` refuses that by name.
    """
    lengths = _counts(_root_, ("data.max_prompt_length", "data.max_response_length"))
    if not lengths:
        return None
    config = model_config(OmegaConf.select(_root_, "actor_rollout_ref.model.path"))
    parts = [config, config.get("text_config")]
    named = [part.get(name) for part in parts if isinstance(part, dict) for name in _CONTEXT_KEYS]
    return min(sum(lengths), next((one for one in named if type(one) is int and one > 0), math.inf))


def model_config(model: str | None) -> dict[str, Any]:
    """config.json of a model in a folder, or of one that the Hub's cache holds; {} where it is not there."""
    from huggingface_hub import try_to_load_from_cache

    try:
        file = Path(str(model)).expanduser() / "config.json"
        cached = None if file.exists() else try_to_load_from_cache(str(model), "config.json")
        config = json.loads(Path(cached or file).read_text("utf-8"))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def fused_kernels(section: str, *, _root_: DictConfig) -> bool:
    """Whether log-probs can be had without keeping logits: for types of models with a plain head.

    `section`: where the model stands in the configuration.
    """
    config = model_config(OmegaConf.select(_root_, f"{section}.path"))
    adapted = OmegaConf.select(_root_, f"{section}.lora_rank") and "lm_head" in str(
        OmegaConf.select(_root_, f"{section}.target_modules")
    )
    return (
        config.get("model_type") in PLAIN_HEADS and not config.get("final_logit_softcapping") and not adapted
    )


def pass_tokens(*, _root_: DictConfig) -> int:
    """Tokens a pass of one device: so many that activations and logits take PASS_BYTES, and the longest row.

    MOST_PASS_TOKENS at most, and where the model's config.json is not there or does not say its sizes.
    """
    from recipe.rerule.training import memory

    config = model_config(OmegaConf.select(_root_, "actor_rollout_ref.model.path"))
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    numbers = [value for value in map(config.get, names) if type(value) is int and value > 0]
    lengths = _counts(_root_, ("data.max_prompt_length", "data.max_response_length"))
    if len(numbers) < len(names) or not lengths:
        return MOST_PASS_TOKENS
    hidden, intermediate, layers, vocabulary = numbers
    platform = OmegaConf.select(_root_, "platform.name")
    number = memory.FLOAT32 if platform == "cpu" else memory.COMPUTE
    kept = hidden * layers
    if not OmegaConf.select(_root_, "actor_rollout_ref.model.enable_gradient_checkpointing"):
        kept = memory.kept_numbers(hidden, intermediate, layers)
    fused = OmegaConf.select(_root_, "actor_rollout_ref.model.use_fused_kernels")
    bytes_of_token = number * kept + (0 if fused else memory.UPDATE_LOGITS * vocabulary)
    fitting = PASS_BYTES.get(platform, PASS_BYTES["gpu"]) // bytes_of_token
    return max(sum(lengths), min(MOST_PASS_TOKENS, int(fitting)))


def attention(choice: str) -> str:
    """attn_implementation on a GPU, from platform.attention: "auto" takes flash-attn where it is installed.

    verl's default needs the package flash-attn, which has no wheel for many pairs of torch and CPython.
    """
    if choice == "auto":
        return "flash_attention_2" if importlib.util.find_spec("flash_attn") else "sdpa"
    return choice


def passes_dtype(choice: bool | str) -> str:
    """The dtype of the trainer's matrix products on a processor, in verl's words; weights stay float32.

    `choice`: platform.bf16; "auto" takes bfloat16 where the processor has instructions for it.
    """
    import torch

    if choice == "auto":
        choice = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bf16" if choice else "fp32"


def processor_optimizer(name: str) -> DictConfig | None:
    """What torch's optimizer of this name takes on a processor: Adam's update as one kernel.

    torch's default is a loop over the parameters. Other optimizers have no such kernel for DTensors.
    """
    return OmegaConf.create({"fused": True}) if name in ("Adam", "AdamW") else None


def threshold_window(batch: int) -> int:
    """Groups whose rewards make the threshold: those of the last THRESHOLD_STEPS steps.

    Raises ValueError: the batch, data.train_batch_size, is no count.
    """
    _require_count("data.train_batch_size", batch)
    return batch * THRESHOLD_STEPS


def micro_batch(limit: int, *, _root_: DictConfig) -> int:
    """Stage 2's rows a pass of one device: the most up to `limit` that divide its rows of a mini-batch.

    They divide its rows of the whole step too, for micro-batches of log-probs.
    """
    responses = ("actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.rollout.n")
    return _fitting(limit, _root_, responses, ("trainer.n_gpus_per_node", "trainer.nnodes"))


def shard_devices(*, _root_: DictConfig) -> int:
    """Devices that share the weights of one copy: those of a node where there are several, else all (-1).

    Gathering weights over the network between nodes would take most of a step.
    """
    counts = _counts(_root_, ("trainer.nnodes", "trainer.n_gpus_per_node"))
    return counts[1] if counts and counts[0] > 1 else -1


def stage1_micro_batch(limit: int, *, _root_: DictConfig) -> int:
    """Stage 1's rows a pass of one device: the most up to `limit` that divide its rows of a batch."""
    return _fitting(limit, _root_, ("data.train_batch_size",), ("trainer.n_gpus_per_node",))


def _fitting(limit: int, config: DictConfig, rows: Sequence[str], devices: Sequence[str]) -> int:
    """`limit` where the rows cannot be shared: `preflight` refuses that, and names the reason."""
    factors, divisors = _counts(config, rows), _counts(config, devices)
    if not factors or not divisors or math.prod(factors) % math.prod(divisors):
        return limit
    return largest_divisor(math.prod(factors) // math.prod(divisors), limit)


def _counts(config: DictConfig, keys: Sequence[str]) -> list[int]:
    """The values of settings; none where one is no count of things, which `schema` refuses by name."""
    try:
        values = [OmegaConf.select(config, key) for key in keys]
    except OmegaConfBaseException:
        return []
    return values if all(type(value) is int and value > 0 for value in values) else []


def count_rows(files: str | Sequence[str] | None, most: object = -1) -> int:
    """Rows of the parquet files, or `most` of them (data.train_max_samples) where that is a number above 0.

    Raises ValueError: no file is given, or one cannot be read or has no rows.
    """
    import pyarrow.parquet as pq

    if files is None:
        raise ValueError("data.train_files is not set; pass data.train_files=PATH")
    paths = [files] if isinstance(files, str) else list(files)
    total = 0
    for path in paths:
        if not Path(path).is_file():
            raise ValueError(f"{path}: no such file")
        try:
            rows = pq.read_metadata(path).num_rows
        except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
            raise ValueError(f"{path}: not a readable parquet file ({str(error).splitlines()[0]})") from None
        if not rows:
            raise ValueError(f"{path}: no rows; give a file with rows, or leave it out of data.train_files")
        total += rows
    return min(total, most) if type(most) is int and most > 0 else total


def register() -> None:
    """Make ${rerule.rows:}, ${rerule.steps:} and the sizes known to Hydra.

    Importing `recipe.rerule.config` does it too.
    """
    named: list[Callable[..., int | float | str | DictConfig | None]] = [
        attention, engine_length, fused_kernels, passes_dtype, pass_tokens, processor_optimizer,
        micro_batch, stage1_micro_batch, mini_batch, shard_devices, batch_size, epochs, parameters, beside,
        stage1_warmup, stage1_rate, stage2_rate, sampling_interval,
        threshold_window, replay_warmup, replay_capacity, test_freq,
    ]  # fmt: skip
    resolvers = {function.__name__: function for function in named}
    resolvers |= {
        "rows": lambda *, _root_: planned_rows(_root_),
        "steps": lambda *, _root_: planned_steps(_root_),
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(f"rerule.{name}", resolver, replace=True)
