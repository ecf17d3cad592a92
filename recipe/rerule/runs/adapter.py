"""What verl writes of a model with a LoRA adapter, made into a whole model and, apart from it, an adapter.

verl writes base weights and adapter into one Hugging Face folder under peft's names (`base_layer`,
`lora_A.default`), which neither transformers nor vLLM reads. `separate` writes W + (alpha / r) B A, computed
in float32, under the model's own names into that folder, and the adapter, as peft keeps it, into another one,
which peft and vLLM load onto the start model.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from recipe.rerule import io
from recipe.rerule.runs import final_weights

FOLDER = "lora_adapter"
"""Name of an adapter's folder, beside that of the model."""
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
UNMERGED = ".base_layer."
"""Part of the name of a weight that has an adapter."""
_PREFIX = "base_model.model."
_LAYER = UNMERGED.rstrip(".")
_PART = re.compile(r"\.lora_([AB])\.[^.]+\.weight$")
_INDEX = "model.safetensors.index.json"


class AdapterError(ValueError):
    """The parts of an adapter do not fit; the message is one line."""


def separate(folder: Path, adapter: Path, rank: int, alpha: int, base: str) -> None:
    """Merge the adapter into the weights of a folder that verl wrote, and write it to `adapter` too.

    A folder without an adapter, or in which it is merged already, stays as it is. To be called before the
    folder counts: a process that is killed here leaves it half done. One file is in memory at once.

    Args:
        folder: of a Hugging Face model in safetensors.
        adapter: the folder to write; what is there is replaced.
        rank, alpha: `lora_rank` and `lora_alpha`, with which it was trained.
        base: the model that training started from, a folder or a name on the Hub.

    Raises:
        AdapterError: a weight with an adapter lacks one of its parts.
        OSError: a file cannot be read or written.
    """
    found = final_weights.weight_files(folder)
    names = {name for file in found for name in _names(file)}
    if not any(UNMERGED in name for name in names):
        return
    parts = {name: tensor for file in found for name, tensor in _read(file, _PART).items()}
    _write_adapter(adapter, parts, names, rank, alpha, base)
    tied = json.loads((folder / "config.json").read_text("utf-8")).get("tie_word_embeddings")
    for file in found:
        _merge_file(file, parts, alpha / rank, drop=(f"{_PREFIX}lm_head.weight",) if tied else ())
    _write_index(folder)


def merged_tensors(
    tensors: Mapping[str, Tensor], parts: Mapping[str, Tensor], scale: float
) -> dict[str, Tensor]:
    """Weights under peft's names to a model's names and weights.

    Args:
        tensors: what a file holds; parts of an adapter among them are left out.
        parts: lora_A, [r, in], and lora_B, [out, r], by the names of peft.
        scale: alpha / r.

    Returns:
        Weights that had an adapter in float32, all others as they were.

    Raises:
        AdapterError: a weight with an adapter lacks one of its parts.
    """
    merged = {}
    for name, tensor in tensors.items():
        if _PART.search(name):
            continue
        if name.endswith(f"{UNMERGED}weight"):
            module = name.removesuffix(f"{UNMERGED}weight")
            tensor = tensor.float() + scale * _part(parts, module, "B") @ _part(parts, module, "A")
        merged[name.removeprefix(_PREFIX).replace(UNMERGED, ".")] = tensor.contiguous()
    return merged


def targets(names: Iterable[str]) -> list[str]:
    """Modules with an adapter, as peft's `target_modules`, from the names of the weights of a model.

    The last parts of their names, such as q_proj, where every module so called has an adapter; otherwise
    their whole names.
    """
    # The owner of a weight or bias; "base_layer" is the last part of the name where it has an adapter.
    owners = {name.removeprefix(_PREFIX).rpartition(".")[0] for name in names if not _PART.search(name)}
    adapted = {owner.removesuffix(_LAYER) for owner in owners if owner.endswith(_LAYER)}
    last = {name.rpartition(".")[2] for name in adapted}
    others = {owner.rpartition(".")[2] for owner in owners if not owner.endswith(_LAYER)}
    return sorted(adapted if last & others else last)


def _write_adapter(
    folder: Path, parts: Mapping[str, Tensor], names: Iterable[str], rank: int, alpha: int, base: str
) -> None:
    from peft import LoraConfig

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # peft's file has the parts without the name of the adapter, which is "default".
    own = {re.sub(r"\.[^.]+\.weight$", ".weight", name): part.contiguous() for name, part in parts.items()}
    save_file(own, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=alpha,
        target_modules=targets(names),
        base_model_name_or_path=os.path.abspath(base) if os.path.isdir(base) else base,
        inference_mode=True,
    ).save_pretrained(str(folder))


def _merge_file(file: Path, parts: Mapping[str, Tensor], scale: float, drop: Iterable[str]) -> None:
    tensors = _read(file)
    for name in drop:
        tensors.pop(name, None)
    merged = merged_tensors(tensors, parts, scale)
    if not merged:
        file.unlink()
        return
    with io.replacing(file) as draft:
        save_file(merged, draft, metadata={"format": "pt"})


def _write_index(folder: Path) -> None:
    """The index of several files, whose names of weights have changed; a single file has none."""
    index, found = folder / _INDEX, final_weights.weight_files(folder)
    if not index.is_file():
        return
    content = json.loads(index.read_text("utf-8"))
    content["weight_map"] = {name: file.name for file in found for name in _names(file)}
    io.write(index, json.dumps(content, indent=2).encode())


def _part(parts: Mapping[str, Tensor], module: str, part: str) -> Tensor:
    for name, tensor in parts.items():
        if name.startswith(f"{module}.lora_") and (found := _PART.search(name)) and found[1] == part:
            return tensor.float()
    raise AdapterError(f"{module} has an adapter without lora_{part}; train again")


def _names(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as tensors:
        return list(tensors.keys())


def _read(file: Path, pattern: re.Pattern[str] | None = None) -> dict[str, Tensor]:
    """The file's tensors, or those whose names have the pattern."""
    with safe_open(file, framework="pt") as tensors:
        names = [name for name in tensors.keys() if pattern is None or pattern.search(name)]  # noqa: SIM118
        return {name: tensors.get_tensor(name) for name in names}
