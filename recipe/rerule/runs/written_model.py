"""What a run has written of its model, how that becomes a folder that others read, and where it ends up.

**Adapter.** verl writes base weights and LoRA adapter into one Hugging Face folder under peft's names
(`base_layer`, `lora_A.default`), which neither transformers nor vLLM reads. Here W + (alpha / r) B A is
computed in float32 and written under the model's own names. The adapter, as peft keeps it, is written into
another folder, which peft and vLLM load onto the start model.

**Dtype.** verl trains in float32 and writes float32, but leaves the dtype of the start model in config.json,
so that whoever loads the folder with dtype "auto" rounds without knowing. Here config.json says what the
files hold. Rounding to bfloat16 (8 bits) puts a weight back to the start model's wherever training moved it
by less than half a step of that format, which is most weights at small learning rates: the share is counted.

Files are written one after the other, each whole at any moment. One is in memory at once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from omegaconf import DictConfig
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from recipe.rerule import io

DType = Literal["float32", "bfloat16"]
ADAPTER = "lora_adapter"
"""Name of an adapter's folder, beside that of the model."""
_INDEX = "model.safetensors.index.json"
_PREFIX, _LAYER = "base_model.model.", ".base_layer"
_NAMES, _NO_FLOATS = {"float32": "F32", "bfloat16": "BF16"}, {"BOOL", "U8", "I8", "I16", "I32", "I64"}
"""Names that safetensors gives dtypes."""
_PART = re.compile(r"(.+)\.lora_([AB])\.[^.]+\.weight")


def settle(folder: Path, model: DictConfig, dtype: DType) -> None:
    """Make the Hugging Face folder that verl has written the one that others read.

    An adapter is merged into the weights and written apart, and the weights get their final dtype. A folder
    without weights stays as it is. To be called before the checkpoint counts: a process that is killed here
    leaves it half done.

    Args:
        folder: a checkpoint's `huggingface`.
        model: the section of the configuration that says what was trained.

    Raises:
        ValueError: the parts of an adapter do not fit.
        OSError: a file cannot be read or written.
    """
    merge(folder, model)
    set_dtype(folder, dtype, model.path)


def settle_all(run_folder: Path, model: DictConfig, dtype: DType) -> None:
    """`settle` the last checkpoint of a finished run, and `merge` in those before it.

    Raises:
        FileNotFoundError: no checkpoint holds a model.
        ValueError, OSError: as `settle`.
    """
    *earlier, last = written_models(run_folder)
    for folder in earlier:
        merge(folder, model)
    settle(last, model, dtype)


def written_models(run_folder: Path) -> list[Path]:
    """The Hugging Face folder of each checkpoint of a run on verl's SFT trainer, the last one's last.

    Raises FileNotFoundError: no checkpoint holds one.
    """
    written = run_folder.glob("global_step_*/huggingface")
    found = sorted(written, key=lambda path: int(path.parent.name.removeprefix("global_step_")))
    if not found:
        raise FileNotFoundError(f"{run_folder} holds no global_step_N/huggingface: stage 1 wrote no model")
    return found


def publish_model(run_folder: Path) -> Path:
    """Move the last checkpoint's Hugging Face folder to <run>/model, in one rename.

    Its adapter, where there is one, is moved to <run>/lora_adapter before.

    Raises FileNotFoundError: no checkpoint holds a model.
    """
    written, model = written_models(run_folder)[-1], run_folder / "model"
    if (apart := written.with_name(ADAPTER)).is_dir():
        # One may be there of a run that was killed between the two renames.
        shutil.rmtree(run_folder / ADAPTER, ignore_errors=True)
        os.replace(apart, run_folder / ADAPTER)
    os.replace(written, model)
    return model


# ---- the adapter ----


def merge(folder: Path, model: DictConfig) -> None:
    """The part of `settle` for an adapter; where there is none, or it is merged already, nothing is written.

    Raises ValueError, OSError: as `settle`.
    """
    names = [name for file in _files(folder) for name in _names(file)]
    if model.lora_rank == 0 or not any(f"{_LAYER}." in name for name in names):
        return
    parts: dict[tuple[str, str], Tensor] = {}
    for file in _files(folder):
        found = {name: part for name in _names(file) if (part := _PART.fullmatch(name))}
        with safe_open(file, framework="pt") as tensors:
            parts |= {(part[1], part[2]): tensors.get_tensor(name) for name, part in found.items()}
    _write_adapter(folder.with_name(ADAPTER), parts, names, model)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    for file in _files(folder):
        tensors = load_file(file)
        if config.get("tie_word_embeddings"):
            tensors.pop(f"{_PREFIX}lm_head.weight", None)
        if merged := _merged(tensors, parts, model.lora_alpha / model.lora_rank):
            _write(file, merged, {"format": "pt"})
        else:
            file.unlink()
    if (folder / _INDEX).is_file():  # the names of the weights have changed
        weight_map = {name: file.name for file in _files(folder) for name in _names(file)}
        _change(folder / _INDEX, {"weight_map": weight_map})


def _merged(
    tensors: dict[str, Tensor], parts: dict[tuple[str, str], Tensor], scale: float
) -> dict[str, Tensor]:
    """Weights by a model's own names: in float32 where they had an adapter, all others as they were.

    parts: A, [r, in], and B, [out, r], of each module by peft's name. scale: alpha / r.
    """
    merged = {}
    for name, tensor in tensors.items():
        if _PART.fullmatch(name):
            continue
        if name.endswith(f"{_LAYER}.weight"):
            module = name.removesuffix(f"{_LAYER}.weight")
            for part in "AB":
                if (module, part) not in parts:
                    raise ValueError(f"{module} has an adapter without lora_{part}; train again")
            tensor = tensor.float() + scale * parts[module, "B"].float() @ parts[module, "A"].float()
        merged[name.removeprefix(_PREFIX).replace(f"{_LAYER}.", ".")] = tensor.contiguous()
    return merged


def _write_adapter(
    folder: Path, parts: dict[tuple[str, str], Tensor], names: Iterable[str], model: DictConfig
) -> None:
    """The adapter as peft keeps it: without the adapter's name, which is "default"."""
    from peft import LoraConfig

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    own = {f"{module}.lora_{part}.weight": tensor.contiguous() for (module, part), tensor in parts.items()}
    save_file(own, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    # The modules by the last parts of their names, such as q_proj, if all modules so called have an adapter.
    owners = {name.removeprefix(_PREFIX).rpartition(".")[0] for name in names if not _PART.fullmatch(name)}
    adapted = {owner.removesuffix(_LAYER) for owner in owners if owner.endswith(_LAYER)}
    last = {name.rpartition(".")[2] for name in adapted}
    others = {owner.rpartition(".")[2] for owner in owners if not owner.endswith(_LAYER)}
    LoraConfig(
        task_type="CAUSAL_LM",
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules=sorted(adapted if last & others else last),
        base_model_name_or_path=os.path.abspath(model.path) if os.path.isdir(model.path) else model.path,
        inference_mode=True,
    ).save_pretrained(str(folder))


# ---- the dtype ----


def set_dtype(folder: Path, dtype: DType, start: str) -> None:
    """Give the weights of a Hugging Face folder their final dtype, have config.json say so, and say what
    rounding undoes. A folder without safetensors files stays as it is, and so does a file of that dtype.

    `start`: the model that training started from, a folder or a name on the Hub.

    Raises OSError: a file cannot be read or written.
    """
    kind = getattr(torch, dtype)
    if not _files(folder):
        return
    before = None if dtype == "float32" else _start_folder(start)
    if dtype != "float32":
        print(f"{folder}: rounding the weights to {dtype} ...", flush=True)
    compared = changed = undone = 0
    for file in _files(folder):
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata()
            kinds = {opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
        if before is None and kinds <= {_NAMES[dtype], *_NO_FLOATS}:  # the file may have many gigabytes
            continue
        tensors = load_file(file)
        found = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
        rounded = {name: tensor.to(kind).contiguous() for name, tensor in found.items()}
        for name, tensor in found.items():
            old = None if before is None else _start_tensor(before, name)
            if old is not None and old.shape == tensor.shape:
                differs = tensor.float() != old.float()
                compared += differs.numel()
                changed += int(differs.sum())
                undone += int((differs & (rounded[name] == old.to(kind))).sum())
        _write(file, tensors | rounded, metadata)
    say_dtype(folder, dtype)
    if dtype != "float32":
        print(f"{folder}: {_rounding(compared, changed, undone)}", flush=True)


def say_dtype(folder: Path, dtype: DType) -> None:
    """The dtype in config.json, and the sum of bytes in the index where there is one. Raises OSError."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    _change(folder / "config.json", _with_dtype(config, dtype))
    if (folder / _INDEX).is_file():
        total = sum(tensor.nbytes for file in _files(folder) for tensor in load_file(file).values())
        metadata = json.loads((folder / _INDEX).read_text("utf-8")).get("metadata", {})
        _change(folder / _INDEX, {"metadata": metadata | {"total_size": total}})


def _with_dtype(config: dict[str, Any], dtype: DType) -> dict[str, Any]:
    """The same configuration of weights of this dtype; those of a model's parts (text_config) stand in it."""
    parts = {
        name: _with_dtype(part, dtype)
        for name, part in config.items()
        if isinstance(part, dict) and {"dtype", "torch_dtype"} & set(part)
    }
    # transformers 5 writes "dtype"; earlier versions, and readers of them, know "torch_dtype".
    key = "torch_dtype" if "torch_dtype" in config else "dtype"
    return config | parts | {key: dtype}


def _rounding(compared: int, changed: int, undone: int) -> str:
    """What rounding undoes, of weights that the start model has too and that training changed."""
    if not compared:
        return (
            "weights are rounded to bfloat16; how many changes that undoes is not known, because the start "
            "model's safetensors files are not on this disk, or have other weights"
        )
    if not changed:
        return "weights are rounded to bfloat16; none of them differs from the start model's"
    share = undone / changed
    return f"rounding to bfloat16 undoes the change of {share:.1%} of the {changed:,} changed weights"


def _start_folder(model: str) -> Path | None:
    """Where a model's files are on this disk, looked up in the Hub's cache by name; None if they are not."""
    if os.path.isdir(path := os.path.expanduser(model)):
        return Path(path)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, local_files_only=True))
    except (OSError, ValueError):
        return None


def _start_tensor(start: Path, name: str) -> Tensor | None:
    """A tensor of the start model by name; None where it has none of that name."""
    for file in _files(start):  # the Hub's cache may lack some
        with safe_open(file, framework="pt") as tensors:
            if name in tensors.keys():  # noqa: SIM118
                return tensors.get_tensor(name)
    return None


# ---- files ----


def _files(folder: Path) -> list[Path]:
    """The folder's safetensors files, in order of their names."""
    return sorted(folder.glob("*.safetensors"))


def _names(file: Path) -> Iterator[str]:
    with safe_open(file, framework="pt") as tensors:
        yield from tensors.keys()


def _write(file: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None) -> None:
    with io.replacing(file) as draft:
        save_file(tensors, draft, metadata=metadata)


def _change(file: Path, changes: dict[str, Any]) -> None:
    """Other values of some keys of a JSON file."""
    content = json.loads(file.read_text("utf-8"))
    io.write(file, json.dumps(content | changes, indent=2).encode() + b"\n")
