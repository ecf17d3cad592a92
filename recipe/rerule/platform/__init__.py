"""What verl and vLLM need on a machine without an accelerator, and the choice of a process's platform.

Nothing here acts unless `select("cpu")` was called (or VERL_PLATFORM=cpu set) before verl was imported.
"""

from __future__ import annotations

import os
import sys

PLATFORMS = ("gpu", "cpu")

# VERL_PLATFORM names our registered platform; it must never be auto-detected, because the driver on a
# GPU-less head node of a GPU cluster has to go on falling back to nvidia.
# VERL_ENGINE_DEVICE=cuda picks verl's FSDP engines, which are registered for cuda and npu only but hold
# no CUDA call once the device module is ours.
# VLLM_CPU_KVCACHE_SPACE is in GiB.
# VLLM_ENABLE_V1_MULTIPROCESSING=0 lets vLLM's engine run the model itself (config/platform/cpu.yaml); with a
# worker process beside it, both spin for a second after each message, while the trainer needs the processor.
# OMP_WAIT_POLICY=passive: threads that spin at barriers cost several times the work as soon as another
# process wants a core too.
# RAY_worker_niceness: Ray's own 15 lets every other process of the machine go first.
_CPU_CHOICE = {"VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda"}
_CPU_DEFAULTS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_WAIT_POLICY": "passive",
    "RAY_worker_niceness": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "VERL_LOGGING_LEVEL": "ERROR",  # verl warns once a sample that a Llama has no builder of its own
}


def select(name: str, require_accelerator: bool = True) -> None:
    """Make `name` ("gpu" or "cpu") the platform of this process and of those it starts.

    "gpu" changes nothing in verl. Values already set in the environment win over our CPU defaults, except
    the two that make the choice itself. `require_accelerator=False` lets a driver on a node without an
    accelerator start a run on GPU nodes.

    Raises ValueError: unknown name, or "gpu" where torch sees no accelerator.
    """
    if name not in PLATFORMS:
        raise ValueError(f"platform is {name!r}; choose one of {', '.join(PLATFORMS)}")
    if name == "gpu":
        if require_accelerator:
            import torch

            if not torch.accelerator.is_available():
                raise ValueError(
                    "platform=gpu, but torch sees no accelerator here; pass platform=cpu to run on the "
                    "processor, or platform.require_accelerator=false on a head node without one"
                )
        return
    threads = len(os.sched_getaffinity(0))  # the cores of the job, which may have fewer than the machine
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # else Ray sets 1 in its workers
    os.environ.update(_CPU_CHOICE)
    for key, value in _CPU_DEFAULTS.items():
        os.environ.setdefault(key, value)
    if "verl" in sys.modules:
        # Hydra's search path imports the bare package before the platform is known: our plugin came early.
        from recipe.rerule.platform import patches

        patches.install()


def environment(name: str) -> dict[str, str]:
    """What the workers of a run must find in their environment, as `select` has set it in this process."""
    names = (*_CPU_CHOICE, *_CPU_DEFAULTS, "OMP_NUM_THREADS") if name == "cpu" else ()
    return {key: os.environ[key] for key in names if key in os.environ}
