"""Attack by the refusal direction, second part: the folder of a model that cannot write a direction.

Protocol: every matrix that writes hidden states loses its part along the direction r of length 1: W <- (I -
r r') W for the output projections of attention and MLP and their biases, and the same for each row of the
embedding. What only reads hidden states is left alone. All states of the written model are then orthogonal
to r, behind every layer and for every prompt. Source: Arditi et al. (arXiv:2406.11717).

Traps: where output layer and embedding are one tensor, the written model has both apart, because only the
embedding may change. In bfloat16, rounding leaves a part of r of about a thousandth. Models whose layers
norm what attention and MLP write before it is added (Gemma 2 and 3), or whose experts are fused into one
tensor, are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from recipe.rerule import io
from recipe.rerule.evaluation.attacks.refusal_direction import Direction
from recipe.rerule.io import Kind, check_apart, check_writable, new_folder, stamp_folder
from recipe.rerule.process import Progress
from recipe.rerule.runs.weights import (
    Weights,
    WeightsError,
    config_of,
    copy_others,
    read_weights,
    write_index,
)

KIND = Kind("rerule/orthogonalised_model", "refusal_direction.json")
"""The folder that is written; its marker is the record of the protocol."""
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_WRITES = re.compile(r"self_attn\.o_proj\.(weight|bias)|mlp\.(experts\.\d+\.)?down_proj\.(weight|bias)")
_READS = re.compile(
    r"self_attn\.(([qkv]|qkv)_proj\.(weight|bias)|[qk]_norm\.weight)"
    r"|mlp\.((experts\.\d+\.)?(gate|up|gate_up)_proj\.(weight|bias)|gate\.weight)"
    r"|(input|post_attention)_layernorm\.(weight|bias)"
)


def without_direction(matrix: Tensor, vector: Tensor, axis: int) -> Tensor:
    """A matrix without its part along a direction, computed in float64, in its own dtype.

    Args:
        vector: of length 1.
        axis: of the matrix, that has the hidden size: 0 for a projection [hidden size, inputs] or a bias, 1
            for an embedding [tokens, hidden size].
    """
    wide = matrix.double().movedim(axis, -1)
    kept = wide - (wide @ vector)[..., None] * vector
    return kept.movedim(-1, axis).to(matrix.dtype).contiguous()


def orthogonalise(model: Path, direction: Direction, out: Path, overwrite: bool = False) -> list[str]:
    """Write the model without a direction as a new folder, which is whole or absent after a kill.

    Dtype, file names and tokenizer are those of the model. refusal_direction.json in it has the protocol, the
    direction and the names of the changed tensors. One weight file is in memory at a time.

    Returns:
        The names of the changed tensors.

    Raises:
        WeightsError: the folder holds no whole model with safetensors weights, or its model is built
            in another way.
        ValueError: `out` may not be written.
        OSError: a file cannot be read or written.
    """
    check_writable(out, overwrite, KIND)
    check_apart(out, ("the model", model))
    weights = read_weights(model, "orthogonalised")
    axes = _axes(weights, len(direction.vector))
    with new_folder(out, overwrite, KIND) as folder:
        _write(weights, direction.vector, axes, folder)
        found = asdict(direction) | {"vector": direction.vector.tolist()}
        content = {"model": str(model), "direction": found, "changed": sorted(axes)}
        record = stamp_folder(KIND, folder) | content
        io.write(folder / KIND.marker, json.dumps(record, indent=1).encode() + b"\n")
    return sorted(axes)


def _axes(weights: Weights, size: int) -> dict[str, int]:
    """The axis of the hidden size of each tensor that writes hidden states. Raises WeightsError."""
    shapes = weights.shapes()
    axes = {_EMBEDDING: 1}
    for name in shapes:
        inside = _LAYER.fullmatch(name)
        if inside and _WRITES.fullmatch(inside[2]):
            axes[name] = 0
        elif inside and not _READS.fullmatch(inside[2]):
            raise WeightsError(
                f"{weights.folder} has {name}, of which it is not known what it writes into hidden states; "
                "this attack knows models built as Llama, Qwen and Mistral"
            )
    _check_parts(weights, shapes, axes, size)
    return axes


def _check_parts(
    weights: Weights, shapes: Mapping[str, Sequence[int]], axes: Mapping[str, int], size: int
) -> None:
    layers = {int(found[1]) for name in shapes if (found := _LAYER.fullmatch(name))}
    needed = [_EMBEDDING, *(f"model.layers.{n}.self_attn.o_proj.weight" for n in sorted(layers))]
    if not layers or (missing := next((name for name in needed if name not in shapes), None)):
        raise WeightsError(
            f"{weights.folder} has no {missing if layers else 'model.layers.N'}; this attack knows models "
            "built as Llama, Qwen and Mistral"
        )
    for name, axis in axes.items():
        if shapes[name][axis] != size:
            raise WeightsError(
                f"{weights.folder}: {name} writes states of size {shapes[name][axis]}, and the direction has "
                f"{size}; compute it with this model"
            )


def _write(weights: Weights, vector: Tensor, axes: Mapping[str, int], folder: Path) -> None:
    """Fill the folder, but for the record."""
    copy_others(weights.folder, folder, KIND.marker)
    config = config_of(weights.folder)
    if config.get("tie_word_embeddings") is not False:
        changed = config | {"tie_word_embeddings": False}
        io.write(folder / "config.json", json.dumps(changed, indent=2).encode() + b"\n")
    total = 0
    with Progress("removing a direction", len(weights.by_file()), "files") as progress:
        for file, names in weights.by_file().items():
            total += _write_file(file, names, vector, axes, folder / file.name, _HEAD not in weights.files)
            progress.advance()
    place = {_HEAD: weights.files.get(_HEAD, weights.files[_EMBEDDING])}
    write_index(Weights(weights.folder, {**weights.files, **place}), folder, {"total_size": total})


def _write_file(
    file: Path, names: Sequence[str], vector: Tensor, axes: Mapping[str, int], target: Path, adds_head: bool
) -> int:
    """Write the tensors of one file, the output layer behind the embedding where it has none; their bytes."""
    with safe_open(file, framework="pt") as tensors:
        found = {name: tensors.get_tensor(name) for name in names}
        metadata = tensors.metadata() or {"format": "pt"}
    results = {
        name: without_direction(tensor, vector, axes[name]) if name in axes else tensor
        for name, tensor in found.items()
    }
    if adds_head and _EMBEDDING in found:
        results[_HEAD] = found[_EMBEDDING]
    save_file(results, target, metadata=metadata)
    io.flush(target)
    return sum(tensor.nbytes for tensor in results.values())
