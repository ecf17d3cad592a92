"""A whole model from the Hugging Face folder that verl writes of a model with a LoRA adapter.

verl writes the parts apart and under peft's names, so that transformers finds none of its weights there.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

_PREFIX = "base_model.model."
_ADAPTER = re.compile(r"\.lora_([AB])\.[^.]+\.weight$")
_INDEX = "model.safetensors.index.json"
_FILE = "model.safetensors"


class AdapterError(ValueError):
    """The parts of an adapter do not fit; the message is one line."""


def merge(folder: Path, scale: float) -> None:
    """Replace a folder's weights by W + scale B A in float32, under the model's own names, in one file.

    To be called before the folder counts: a process that is killed here leaves it half done.

    Args:
        scale: lora_alpha / lora_rank.

    Raises:
        AdapterError: a weight with an adapter lacks one of its parts.
        OSError: a file cannot be read or written.
    """
    files = sorted(folder.glob("*.safetensors"))
    tensors = {name: tensor for file in files for name, tensor in _read(file).items()}
    if json.loads((folder / "config.json").read_text("utf-8")).get("tie_word_embeddings"):
        tensors.pop(f"{_PREFIX}lm_head.weight", None)
    merged = merged_tensors(tensors, scale)
    for file in (*files, folder / _INDEX):
        file.unlink(missing_ok=True)
    save_file(merged, folder / _FILE, metadata={"format": "pt"})


def merged_tensors(tensors: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """peft's names and parts to a model's names and weights. Raises AdapterError."""
    merged = {}
    for name, tensor in tensors.items():
        if _ADAPTER.search(name):
            continue
        own = name.removeprefix(_PREFIX)
        if own.endswith(".base_layer.weight"):
            module = name.removesuffix(".base_layer.weight")
            tensor = tensor.float() + scale * _part(tensors, module, "B") @ _part(tensors, module, "A")
        merged[own.replace(".base_layer.", ".")] = tensor.contiguous()
    return merged


def _part(tensors: dict[str, Tensor], module: str, part: str) -> Tensor:
    for name, tensor in tensors.items():
        if name.startswith(f"{module}.lora_") and (found := _ADAPTER.search(name)) and found[1] == part:
            return tensor.float()
    raise AdapterError(f"{module} has an adapter without lora_{part}; train again")


def _read(file: Path) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as tensors:
        return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
