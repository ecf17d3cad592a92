"""Part 1: loss and gradient of the replay update on the device against float64 on the processor.

Both see the same weights: those of the bfloat16 model are rounded before they are made float64. The stored
log-probs are of a model whose weights differ a little, so that ratios do too. Limits: LIMITS.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks.gpu_check import reference
from benchmarks.gpu_check.lines import Line
from benchmarks.gpu_check.made import Rows, Shape, llama, random_groups
from benchmarks.gpu_check.updates import replay_update
from recipe.rerule.platform import attention
from recipe.rerule.replay import ImportanceConfig, RolloutGroup, pad_groups

KL_COEF = 0.01
NOISE = 0.02
"""By how much the weights of the policy that sampled differ, as a share of each weight's size."""
LIMITS = {
    torch.float32: {"log-probs": 2e-5, "weights": 2e-5, "loss": 2e-6, "gradient": 2e-5},
    torch.bfloat16: {"log-probs": 0.2, "weights": 0.2, "loss": 5e-2, "gradient": 0.1},
}
"""Largest absolute error of a log-prob, of a weight and of the loss; of the gradient, norm of its error over
its norm. They are three to ten times what two processors showed: there bfloat16, which keeps 8 bits, knew
log-probs to 0.06 after four layers, the gradient to 3 per cent, and the loss to 0.002 on the one that has
instructions for bfloat16 and to 0.012 on the other.
"""
SMALL = Shape("small", 64, 128, 4, 2, 512, layers=2)
MEDIUM = Shape("medium", 512, 1024, 8, 4, 4096, layers=4)


def check(device: str, small: bool) -> Iterator[Line]:
    """Every dtype, attention and number of micro-batches there is on this device."""
    attention.install()
    shape, rows = (SMALL, Rows(4, 4, 6, 8)) if small else (MEDIUM, Rows(8, 8, 32, 64))
    for dtype in (torch.float32, torch.bfloat16):
        model = llama(shape, device, dtype)
        exact = copy.deepcopy(model).cpu().double()
        groups = stored_groups(exact, rows, shape.vocabulary)
        expected = reference.replay_update(exact, groups, ImportanceConfig(), KL_COEF)
        for name in attentions(device, dtype):
            model.set_attn_implementation(name)
            what = f"{str(dtype).removeprefix('torch.')}, {name}"
            for micro_batch in (rows.groups * rows.rollouts, rows.rollouts):
                yield from _compared(model, groups, micro_batch, expected, what)


def stored_groups(exact: torch.nn.Module, rows: Rows, vocabulary: int) -> list[RolloutGroup]:
    """Random groups whose old and reference log-probs are of two models near `exact`."""
    old, ref = nearby(exact, 1), nearby(exact, 2)
    return [
        replace(group, old_log_probs=_log_probs(old, group), ref_log_probs=_log_probs(ref, group))
        for group in random_groups(rows, vocabulary)
    ]


def nearby(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """A copy whose weights differ by NOISE of their own size."""
    generator = torch.Generator().manual_seed(seed)
    found = copy.deepcopy(model)
    with torch.no_grad():
        for weight in found.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.mul_(1 + NOISE * noise)
    return found


def attentions(device: str, dtype: torch.dtype) -> list[str]:
    """transformers' names of the attentions to check; flash-attn has no float32 and no CPU kernels."""
    flash = device == "cuda" and dtype == torch.bfloat16 and importlib.util.find_spec("flash_attn")
    return ["sdpa", "flash_attention_2"] if flash else ["sdpa"]


@torch.no_grad()
def _log_probs(model: torch.nn.Module, group: RolloutGroup) -> torch.Tensor:
    """Those of the group's response tokens, float32 [tokens]."""
    return torch.cat(reference.row_log_probs(model, group)).float()


def _compared(
    model: torch.nn.Module,
    groups: list[RolloutGroup],
    micro_batch: int,
    expected: reference.Expected,
    what: str,
) -> Iterator[Line]:
    device = next(model.parameters()).device
    batch = {name: plane.to(device) for name, plane in pad_groups(groups, pad_token_id=0).items()}
    model.zero_grad()
    found = replay_update(model, batch, micro_batch, ImportanceConfig(), KL_COEF)
    parts, valid = -(-len(batch["responses"]) // micro_batch), batch["response_mask"].bool()
    gradient = {name: weight.grad for name, weight in model.named_parameters()}

    def largest(values: torch.Tensor, exact: torch.Tensor) -> float:
        return float((values[valid].cpu().double() - exact).abs().max())

    errors = {
        "log-probs": largest(found.log_probs, expected.log_probs),
        "weights": largest(found.weights, expected.weights),
        "loss": abs(found.loss - expected.loss),
        "gradient": gradient_error(gradient, expected.gradient),
    }
    for name, error in errors.items():
        limit = LIMITS[model.dtype][name]
        yield Line("replay update", f"{what}, {parts} micro-batches: error of {name}", error, limit=limit)


def gradient_error(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """Norm of the difference over the norm of the exact gradient, all parameters as one vector."""
    squares = [
        ((found[name].cpu().double() - value).square().sum(), value.square().sum())
        for name, value in exact.items()
    ]
    difference, size = (torch.stack(parts).sum() for parts in zip(*squares, strict=True))
    return float((difference / size).sqrt())
