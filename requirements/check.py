"""Says whether the CPU stack that requirements/cpu.txt pins can be imported, in one line."""

from __future__ import annotations

import sys

CPU_TORCH = (
    "torch here is the CUDA build without its libraries; set it up again with "
    "make clean && make setup TORCH_INDEX=<index of PyTorch's CPU wheels>, or with TORCH_CUDA=1, which "
    "installs those libraries (3 GB)"
)


def main() -> None:
    """Import the stack and print its versions; exit code 1 with the reason where that fails."""
    try:
        import torch
    except (ImportError, OSError) as error:
        sys.exit(f"error: {CPU_TORCH} ({error})")
    import ray
    import transformers
    import verl
    import vllm

    modules = (torch, transformers, verl, vllm, ray)
    print("installed:", ", ".join(f"{module.__name__} {module.__version__}" for module in modules))


if __name__ == "__main__":
    main()
