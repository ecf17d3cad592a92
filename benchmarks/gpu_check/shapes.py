"""Part 2: memory and seconds of the replay update and of the on-policy update, for layers of real shapes.

A few layers of each shape with its whole vocabulary, bfloat16, AdamW; gradients and optimiser included. The
on-policy update is the training pass of verl's update_actor alone, without old and reference log-probs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch

from benchmarks.gpu_check.lines import Line
from benchmarks.gpu_check.made import Rows, Shape, llama, random_groups
from benchmarks.gpu_check.updates import on_policy_update, replay_update
from recipe.rerule.platform import attention
from recipe.rerule.replay import ImportanceConfig, pad_groups

KL_COEF = 0.01
REPEATS = 3
SHAPES = (
    # The layers of Llama-3.2-1B and Llama-3.1-8B; four of their 16 and 32.
    Shape("1B", 2048, 8192, 32, 8, 128256, layers=4, tied=True),
    Shape("8B", 4096, 14336, 32, 8, 128256, layers=4),
)
SMALL = (Shape("small", 64, 128, 4, 2, 512, layers=2),)
GIB = 2**30
CUTS = ("one micro-batch", "one group a micro-batch")


def check(device: str, small: bool) -> Iterator[Line]:
    """Seconds and, on an accelerator, peak memory of both updates by shape, and their ratios."""
    attention.install()
    shapes, rows = (SMALL, Rows(4, 4, 6, 8)) if small else (SHAPES, Rows(8, 8, 128, 256))
    for shape in shapes:
        yield from _measured(shape, rows, device)


def _measured(shape: Shape, rows: Rows, device: str) -> Iterator[Line]:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    model = llama(shape, device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-6)
    groups = random_groups(rows, shape.vocabulary)
    batch = {name: plane.to(device) for name, plane in pad_groups(groups, pad_token_id=0).items()}
    measured: dict[str, tuple[float, float | None]] = {}
    for cut, size in zip(CUTS, (rows.groups * rows.rollouts, rows.rollouts), strict=True):
        on_policy = partial(on_policy_update, model, batch, size, KL_COEF)
        replay = partial(replay_update, model, batch, size, ImportanceConfig(), KL_COEF)
        measured[f"on-policy update, {cut}"] = _cost(on_policy, optimizer, device)
        measured[f"replay update, {cut}"] = _cost(replay, optimizer, device)
    part = f"{shape.layers} layers of {shape.name}"
    for name, (seconds, memory) in measured.items():
        yield Line(part, f"{name}: seconds", seconds, "s")
        if memory is not None:
            yield Line(part, f"{name}: peak memory", memory / GIB, "GiB")
    for cut in CUTS:
        ratio = measured[f"replay update, {cut}"][0] / measured[f"on-policy update, {cut}"][0]
        yield Line(part, f"replay over on-policy, {cut}", ratio, "x")


def _cost(
    update: Callable[[], object], optimizer: torch.optim.Optimizer, device: str
) -> tuple[float, float | None]:
    """Median seconds of the update and its optimiser step, and the largest bytes allocated meanwhile."""
    seconds = []
    for repeat in range(REPEATS + 1):
        if repeat == 1 and device == "cuda":  # the first is a warm-up
            torch.cuda.reset_peak_memory_stats()
        start = _now(device)
        optimizer.zero_grad(set_to_none=True)
        update()
        optimizer.step()
        seconds.append(_now(device) - start)
    return median(seconds[1:]), torch.cuda.max_memory_allocated() if device == "cuda" else None


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
