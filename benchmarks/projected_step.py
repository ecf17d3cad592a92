"""Projected seconds of a step of RWKU with 8 billion parameters: python -m benchmarks.projected_step

Computed from floating-point operations and bytes, for 4 and 8 GPUs of 80 GB in one machine; nothing was
measured. Passes are made by tokens, as with platform=gpu. The reward, data, messages and the optimizer's own
arithmetic are left out. Prints a table in Markdown (docs/gpu.md).
"""

from __future__ import annotations

import math

GPUS = {"A100": (312e12, 2.04e12, 225e9), "H100": (989e12, 3.35e12, 337e9)}
"""By NVIDIA's data sheets: bfloat16 FLOP/s, bytes/s of memory, and 3/4 of NVLink's bytes/s each way."""
COUNTS = (4, 8)
COMPUTING, READING = 0.35, 0.6
"""Assumed shares of FLOP/s in passes, and of bytes/s while the engine samples."""
HOST_LINK = 25e9
"""Bytes/s of PCIe, over which the reference and new weights go (assumed)."""
WEIGHTS, LAYERS, HIDDEN, KEY_VALUES = 8.03e9, 32, 4096, 2 * 1024
"""Of Llama-3-8B; KEY_VALUES are the numbers that a layer caches of a token."""
ROWS, PROMPT, RESPONSE, LONGEST = 256, 50, 120, 480
"""32 prompts x 8 responses of about RWKU's mean tokens; the longest is taken as four times the mean."""
PASS_TOKENS = 16384
NUMBER = 2
"""Bytes of a weight in bfloat16."""


def parts(gpu: str, count: int) -> dict[str, float]:
    """Seconds of each part of a step, the replay update last."""
    flops, memory, link = GPUS[gpu]
    rows, length = ROWS / count, PROMPT + RESPONSE
    forward = rows * length * 2 * (WEIGHTS + LAYERS * HIDDEN * length) / (flops * COMPUTING)
    passes = math.ceil(rows * length / PASS_TOKENS)
    gathering = passes * NUMBER * WEIGHTS * (count - 1) / count / link
    cached = rows * RESPONSE * (PROMPT + RESPONSE / 2) * NUMBER * LAYERS * KEY_VALUES
    sampling = (LONGEST * NUMBER * WEIGHTS + cached) / (memory * READING)
    log_probs = max(forward, gathering)
    reference = max(forward, passes * NUMBER * WEIGHTS / count / HOST_LINK)
    # The backward pass is worth two forward passes and computes one again (gradient checkpointing). Weights
    # are gathered twice, and gradients, which have twice the bytes, are scattered once.
    update = max(4 * forward, 4 * gathering)
    return {
        "sampling": sampling,
        "old log-probs": log_probs,
        "reference": reference,
        "on-policy update": update,
        "sending weights": NUMBER * WEIGHTS / HOST_LINK,
        # As many rows again; with several passes, one more finds the importance weights first.
        "replay update": update + (log_probs if passes > 1 else 0),
    }


def main() -> None:
    """Print the table."""
    columns = {f"{count} {gpu}": parts(gpu, count) for gpu in GPUS for count in COUNTS}
    print("| projected seconds | " + " | ".join(columns) + " |\n|---|" + "---:|" * len(columns))
    for name in parts("A100", 4):
        print(f"| {name} | " + " | ".join(f"{one[name]:.1f}" for one in columns.values()) + " |")
    steps = [sum(one.values()) for one in columns.values()]
    print("| **a step with replay** | " + " | ".join(f"{step:.1f}" for step in steps) + " |")
    shares = [one["replay update"] / step for one, step in zip(columns.values(), steps, strict=True)]
    print("| share of the replay update, % | " + " | ".join(f"{100 * share:.0f}" for share in shares) + " |")


if __name__ == "__main__":
    main()
