"""The CPU platform: verl's `PlatformBase` for a machine without an accelerator.

Logical devices keep the name "GPU" in Ray, so placement groups and device ids work as on GPUs
(`ray_kwargs.ray_init.num_gpus=N` gives N of them on any machine).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _nothing(self: object, *_: Any, **__: Any) -> None:
    """Work on the processor is finished when a call returns; it has no allocator, counters or limits."""


class CpuDeviceModule(ModuleType):
    """`torch.cpu` with what verl asks of a device module besides.

    Memory figures are 0: there is no device memory apart from the machine's own.
    """

    def __init__(self) -> None:
        super().__init__("recipe.rerule.platform.cpu_device")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def get_device_name(self, device: object = None) -> str:
        return "cpu"

    def memory_allocated(self, device: object = None) -> int:
        return 0

    empty_cache = ipc_collect = _nothing
    reset_peak_memory_stats = set_per_process_memory_fraction = _nothing
    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        """Free and total bytes of the machine's memory."""
        import psutil

        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        torch.set_rng_state(state)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """Chosen with VERL_PLATFORM=cpu only; see `select`."""

    _device_module = CpuDeviceModule()

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return self._device_module

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Never by detection: this answers verl's probe of what the machine has."""
        return False

    def current_device(self) -> Any:
        """ "cpu", not an index: verl passes this to `Tensor.to`, where an integer means an accelerator."""
        return "cpu"

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed
    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """False: weights then travel to the rollout engine through shared memory."""
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        return {"VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")}

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield
