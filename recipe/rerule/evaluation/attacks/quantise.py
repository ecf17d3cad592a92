"""Attack by quantisation: the model with rounded weights is asked as the benchmark asks.

Protocol: symmetric rounding to nearest with one step for each row and group, without calibration data.
Rounded are the two-dimensional weights of the decoder layers (names with "layers.N."). Left alone are
embeddings, output layer, norms, biases and the routers of mixtures of experts. A group has 128 weights of a
row; where 128 does not divide the row, it has the largest divisor below 128.

The rounded weights are written as ordinary numbers in the dtype that they had, so that any engine loads the
folder. bfloat16 holds the numbers of an 8-bit grid only to 0.39 of a step and those of a 4-bit grid to 0.02;
for 7 or 8 bits use float32 or float16 folders, for all models that are compared.

This is not the number format of bitsandbytes: its 4 bits are FP4 or NF4 with a table of values that are not
equally far apart, and its 8 bits keep outliers and round activations too.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from recipe.rerule import io
from recipe.rerule.evaluation.attacks.attack import Attack, Change, Material, Options
from recipe.rerule.evaluation.attacks.weights import rewritten
from recipe.rerule.runs.weights import Weights, read_weights

BITS = (8, 4, 3)
GROUP_SIZE = 128
_IN_LAYER = re.compile(r"(^|\.)layers\.\d+\.")
_LEFT_ALONE = re.compile(r"norm|embed|(^|\.)(lm_head|gate|router)\.weight$", re.IGNORECASE)
_BFLOAT16_BITS = 6
"""Most bits whose grid bfloat16 holds to about a tenth of a step."""


def round_to_nearest(weights: Tensor, bits: int, group_size: int) -> Tensor:
    """Weights after symmetric quantisation by rounding, as ordinary numbers of the same dtype and shape.

    Every group of `group_size` neighbours of the last axis has its own step s = max|w| / (2^(bits-1) - 1).
    Each weight becomes s times the nearest whole number, half-way cases to the even one. Steps and codes are
    computed in float64. A second rounding changes nothing (in float64: nothing beyond its precision).

    Args:
        weights: floating, of at least one axis, usually [outputs, inputs]; not changed.
        bits: 2 to 8.
        group_size: a divisor of the axis.

    Raises ValueError for a weight that is not finite.
    """
    if not bool(torch.isfinite(weights).all()):
        raise ValueError("the weights hold NaN or infinity")
    levels = 2 ** (bits - 1) - 1
    groups = weights.double().unflatten(-1, (-1, group_size))
    steps = groups.abs().amax(-1, keepdim=True) / levels
    codes = (groups / steps.where(steps > 0, 1)).round().clamp(-levels, levels)
    return (codes * steps).flatten(-2).to(weights.dtype)


def quantise(model: Path, bits: int, out: Path) -> None:
    """Write the model with its linear weights rounded as a folder.

    Args:
        bits: 2 to 8.

    Raises:
        ValueError: the folder holds no whole model with safetensors weights that are not quantised yet; it
            has no linear weights in decoder layers, or fused experts; or a weight is not finite.
        ValueError: `out` may not be written.
        OSError: a file cannot be read or written.
    """
    weights = read_weights(model, "rounded")
    groups = {
        name: next(size for size in range(min(width, GROUP_SIZE), 0, -1) if width % size == 0)
        for name, width in _widths(weights).items()
    }
    dtypes = set[torch.dtype]()

    def change(name: str, tensor: Tensor) -> Tensor:
        if name not in groups:
            return tensor
        dtypes.add(tensor.dtype)
        try:
            return round_to_nearest(tensor, bits, groups[name])
        except ValueError as error:
            raise ValueError(f"{weights.files[name]}: {name}: {error}") from None

    rewritten(weights, out, change)
    if bits > _BFLOAT16_BITS and torch.bfloat16 in dtypes:
        io.warn(
            f"{model} is bfloat16, which does not hold the numbers of a grid of {bits} bits exactly; use a "
            "float32 or float16 folder"
        )


def _widths(weights: Weights) -> dict[str, int]:
    """Numbers of inputs of the tensors to be rounded, by name. Raises ValueError."""
    inside = {
        name: shape
        for name, shape in weights.shapes().items()
        if _IN_LAYER.search(name) and not _LEFT_ALONE.search(name)
    }
    if fused := next((name for name, shape in inside.items() if len(shape) > 2), None):
        raise ValueError(
            f"{weights.folder} has {fused} of {len(inside[fused])} axes, whose inputs are not known; save "
            "each expert's weights apart"
        )
    linear = {
        name: shape[1] for name, shape in inside.items() if len(shape) == 2 and name.endswith(".weight")
    }
    if not linear:
        raise ValueError(
            f"{weights.folder} has no linear weights in decoder layers named layers.N, which could be rounded"
        )
    return linear


def _changes(bits: int, material: Material, options: Options) -> list[Change]:
    return [Change(("",), lambda model, out: quantise(model, bits, out[""]), material.asked)]


ATTACKS = tuple(
    Attack(
        name=f"quantise_{bits}",
        title=f"{bits} bits",
        tells=f"The weights of the decoder layers are rounded to {bits} bits.",
        default=bits != 3,
        changes=partial(_changes, bits),
    )
    for bits in BITS
)
