"""Attack by quantisation: an ordinary model folder whose linear weights are rounded to a few bits.

Protocol: symmetric rounding to nearest with one step for each row and group (`estimators.round_to_nearest`),
without calibration data. Rounded are the two-dimensional weights of the decoder layers (names with
"layers.N."). Left alone are embeddings, output layer, norms, biases and the routers of mixtures of experts.
A group has 128 weights of a row; where 128 does not divide the row, it has the largest divisor below 128.

The rounded weights are written as ordinary numbers in the dtype that they had, so that any engine loads the
folder. bfloat16 holds the numbers of an 8-bit grid only to 0.39 of a step and those of a 4-bit grid to 0.02;
for 7 or 8 bits use float32 or float16 folders, for all models that are compared.

This is not the number format of bitsandbytes: its 4 bits are FP4 or NF4 with a table of values that are not
equally far apart, and its 8 bits keep outliers and round activations too.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from recipe.rerule import io
from recipe.rerule.evaluation.attacks.estimators import FEWEST_BITS, MOST_BITS, round_to_nearest
from recipe.rerule.io import Kind, check_apart, check_writable, new_folder, stamp_folder
from recipe.rerule.process import Progress
from recipe.rerule.runs.weights import Weights, WeightsError, copy_others, read_weights, write_index

KIND = Kind("rerule/quantised_model", "quantisation.json")
"""The folder that is written; its marker is the record of the protocol."""
GROUP_SIZE = 128
_IN_LAYER = re.compile(r"(^|\.)layers\.\d+\.")
_LEFT_ALONE = re.compile(r"norm|embed|(^|\.)(lm_head|gate|router)\.weight$", re.IGNORECASE)
_BFLOAT16_BITS = 6
"""Most bits whose grid bfloat16 holds to about a tenth of a step."""


@dataclass(frozen=True)
class Rounded:
    """What was done to a model.

    Attributes:
        group_sizes: of each rounded tensor by name.
        left_alone: names of the other tensors.
        weights: number of weights in the rounded tensors.
        changed: how many of them have another value now.
    """

    group_sizes: dict[str, int]
    left_alone: list[str]
    weights: int
    changed: int


def quantise(
    model: Path, bits: int, out: Path, group_size: int = GROUP_SIZE, overwrite: bool = False
) -> Rounded:
    """Write the model with its linear weights rounded as a new folder, which is whole or absent after a kill.

    Dtype, file names, configuration and tokenizer are those of the model. The record of the protocol is in
    quantisation.json. One weight file is in memory at a time.

    Args:
        bits: 2 to 8.
        group_size: most weights with a common step; each row's largest divisor up to this size is used.
        overwrite: whether an earlier folder of this function may be replaced.

    Raises:
        WeightsError: the folder holds no whole model with safetensors weights that are not quantised yet; it
            has no linear weights in decoder layers, or fused experts; or a weight is not finite.
        ValueError: bits or group_size out of range, or `out` may not be written.
        OSError: a file cannot be read or written.
    """
    _check_settings(bits, group_size)
    check_writable(out, overwrite, KIND)
    check_apart(out, ("the model", model))
    weights = read_weights(model, "rounded")
    group_sizes = {name: group_of(width, group_size) for name, width in _widths(weights).items()}
    if bits > _BFLOAT16_BITS and _is_bfloat16(weights, group_sizes):
        io.warn(
            f"{model} is bfloat16, which does not hold the numbers of a grid of {bits} bits exactly; use a "
            "float32 or float16 folder"
        )
    with new_folder(out, overwrite, KIND) as folder:
        rounded = _write(weights, bits, group_sizes, folder)
        record = {"model": str(model), "scheme": "symmetric", "bits": bits, "group_size": group_size}
        content = stamp_folder(KIND, folder) | record | asdict(rounded)
        io.write(folder / KIND.marker, json.dumps(content, indent=1).encode() + b"\n")
    return rounded


def group_of(width: int, most: int = GROUP_SIZE) -> int:
    """The size of the groups of a row of `width` weights: its largest divisor up to `most`."""
    return next(size for size in range(min(width, most), 0, -1) if width % size == 0)


def _check_settings(bits: int, group_size: int) -> None:
    if not FEWEST_BITS <= bits <= MOST_BITS:
        raise ValueError(f"bits is {bits}; {FEWEST_BITS} to {MOST_BITS} are possible")
    if group_size < 1:
        raise ValueError(f"group_size is {group_size}; it must be at least 1")


def _widths(weights: Weights) -> dict[str, int]:
    """Numbers of inputs of the tensors to be rounded, by name. Raises WeightsError."""
    inside = {
        name: shape
        for name, shape in weights.shapes().items()
        if _IN_LAYER.search(name) and not _LEFT_ALONE.search(name)
    }
    if fused := next((name for name, shape in inside.items() if len(shape) > 2), None):
        raise WeightsError(
            f"{weights.folder} has {fused} of {len(inside[fused])} axes, whose inputs are not known; save "
            "each expert's weights apart"
        )
    linear = {
        name: shape[1] for name, shape in inside.items() if len(shape) == 2 and name.endswith(".weight")
    }
    if not linear:
        raise WeightsError(
            f"{weights.folder} has no linear weights in decoder layers named layers.N, which could be rounded"
        )
    return linear


def _is_bfloat16(weights: Weights, names: Collection[str]) -> bool:
    """Whether any of the tensors is."""
    for file, inside in weights.by_file().items():
        with safe_open(file, framework="pt") as tensors:
            if any(tensors.get_slice(name).get_dtype() == "BF16" for name in inside if name in names):
                return True
    return False


def _write(weights: Weights, bits: int, group_sizes: dict[str, int], folder: Path) -> Rounded:
    """Fill the folder, but for the record."""
    copy_others(weights.folder, folder, KIND.marker)
    counts = Counter[str]()
    with Progress(f"rounding to {bits} bits", len(weights.files), "tensors") as progress:
        for file, names in weights.by_file().items():
            counts += _write_file(file, names, bits, group_sizes, folder / file.name, progress)
    write_index(weights, folder, {"total_size": counts["bytes"]})
    left_alone = sorted(weights.files.keys() - group_sizes.keys())
    return Rounded(group_sizes, left_alone, counts["weights"], counts["changed"])


def _write_file(
    file: Path, names: list[str], bits: int, group_sizes: dict[str, int], target: Path, progress: Progress
) -> Counter[str]:
    """Write the tensors of one file; counts its bytes, and its weights that were rounded or changed."""
    results, counts = {}, Counter[str]()
    with safe_open(file, framework="pt") as tensors:
        for name in names:
            before = after = tensors.get_tensor(name)
            if name in group_sizes:
                after = _rounded(name, before, bits, group_sizes[name], file)
                counts["weights"] += after.numel()
                counts["changed"] += int(torch.count_nonzero(before != after))
            results[name] = after
            counts["bytes"] += after.nbytes
            progress.advance()
        save_file(results, target, metadata=tensors.metadata() or {"format": "pt"})
    io.flush(target)
    return counts


def _rounded(name: str, tensor: Tensor, bits: int, group_size: int, file: Path) -> Tensor:
    try:
        return round_to_nearest(tensor, bits, group_size)
    except ValueError as error:
        raise WeightsError(f"{file}: {name}: {error}") from None
