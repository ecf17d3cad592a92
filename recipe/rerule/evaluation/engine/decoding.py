"""Where and how vLLM runs for an evaluation: platform, dtype, GPUs."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Any

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Decoding:
    """What models run on.

    Attributes:
        platform: "gpu" or "cpu". On CPU the engine swaps weights between models of one architecture; on GPU
            every model gets a fresh engine.
        chosen_dtype: what all models compute in; None: float32 on CPU, bfloat16 on GPU. vLLM's own choice
            would be each model's config.json, so that the models of one table could differ in it.
        tensor_parallel_size: GPUs that one model is divided over.
        gpu_memory_utilization: share of each GPU's memory that vLLM takes; None is vLLM's own default.

    Raises:
        ValueError: a value out of range, or an option for GPUs on the CPU.
    """

    platform: str
    chosen_dtype: str | None = None
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float | None = None

    def __post_init__(self) -> None:
        share = self.gpu_memory_utilization
        if self.tensor_parallel_size < 1:
            raise ValueError(f"--tensor-parallel-size is {self.tensor_parallel_size}; give a number of GPUs")
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"--gpu-memory-utilization is {share:g}; give a share above 0, at most 1")
        if self.platform == "cpu" and (self.tensor_parallel_size > 1 or share is not None):
            raise ValueError(
                "--tensor-parallel-size and --gpu-memory-utilization are for GPUs; leave them out with "
                "--platform cpu"
            )

    @property
    def dtype(self) -> str:
        """vLLM's name of the dtype."""
        return self.chosen_dtype or ("float32" if self.platform == "cpu" else "bfloat16")

    @property
    def engine_arguments(self) -> dict[str, Any]:
        """Arguments of vLLM's `LLM` that are chosen here."""
        arguments: dict[str, Any] = {"dtype": self.dtype, "tensor_parallel_size": self.tensor_parallel_size}
        if self.gpu_memory_utilization is not None:
            arguments["gpu_memory_utilization"] = self.gpu_memory_utilization
        return arguments

    @property
    def environment(self) -> dict[str, str]:
        """Of vLLM's process, where the caller's says nothing else: little in the log; on CPU all cores."""
        if self.platform != "cpu":
            return {"VLLM_LOGGING_LEVEL": "WARNING"}
        return {
            "VLLM_LOGGING_LEVEL": "WARNING",
            "OMP_NUM_THREADS": str(os.cpu_count() or 1),
            # Binding threads to fixed cores would put two processes of one machine on the same cores.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # vLLM compiles a few helpers also where the model runs eagerly: 5 to 15 s, and a C++ compiler.
            "TORCH_COMPILE_DISABLE": "1",
        }

    @property
    def swaps_weights(self) -> bool:
        """Whether one engine serves several models of one architecture."""
        return self.platform == "cpu"


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --dtype, --tensor-parallel-size and --gpu-memory-utilization."""
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="dtype in which all models of the table compute (default: bfloat16, on cpu float32)",
    )
    parser.add_argument(
        "--tensor-parallel-size", type=int, default=1, metavar="N",
        help="GPUs that one model is divided over (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--gpu-memory-utilization", type=float, metavar="X",
        help="share of each GPU's memory that vLLM takes (default: vLLM's own)",
    )  # fmt: skip


def decoding_of(options: argparse.Namespace) -> Decoding:
    """What the command line chose. Raises ValueError."""
    return Decoding(
        options.platform, options.dtype, options.tensor_parallel_size, options.gpu_memory_utilization
    )
