"""The dtype of a written Hugging Face folder, and what rounding to it undoes.

verl trains in float32 and writes its folder in float32, but leaves the dtype of the start model in
config.json, so that whoever loads the folder with dtype "auto" rounds without knowing. Here config.json says
what the files hold. Rounding to bfloat16 (8 bits) puts a weight back to the start model's wherever training
moved it by less than half a step of that format, which is most weights at small learning rates: the share is
counted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from recipe.rerule import io

DType = Literal["float32", "bfloat16"]
DTYPES: tuple[str, ...] = get_args(DType)
_SAFETENSORS_NAMES = {"float32": "F32", "bfloat16": "BF16"}
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Rounding:
    """Weights that training changed, and those of them that rounding put back to the start model's value.

    compared: weights that the start model has too.
    """

    changed: int = 0
    undone: int = 0
    compared: int = 0

    def __add__(self, other: Rounding) -> Rounding:
        return Rounding(
            self.changed + other.changed, self.undone + other.undone, self.compared + other.compared
        )

    def sentence(self) -> str:
        """For a person, in one line."""
        if not self.compared:
            return (
                "weights are rounded to bfloat16; how many changes that undoes is not known, because the "
                "start model's safetensors files are not on this disk, or have other weights"
            )
        if not self.changed:
            return "weights are rounded to bfloat16; none of them differs from the start model's"
        share = self.undone / self.changed
        return (
            f"rounding to bfloat16 undoes the change of {share:.1%} of the {self.changed:,} changed weights"
        )


def settle(folder: Path, dtype: DType, model: str) -> None:
    """Give the weights that verl has written their final dtype, and say what rounding undoes.

    A folder without safetensors files stays as it is.

    Args:
        folder: of a Hugging Face model.
        model: that training started from, a folder or a name on the Hub.

    Raises:
        OSError: a file cannot be read or written.
    """
    if not weight_files(folder):
        return
    if dtype == "float32":
        write_as(folder, dtype, None)
        return
    print(f"{folder}: rounding the weights to {dtype} ...", flush=True)
    print(f"{folder}: {write_as(folder, dtype, start_folder(model)).sentence()}", flush=True)


def start_folder(model: str) -> Path | None:
    """Where a model's files are on this disk, looked up in the Hub's cache by name; None if they are not."""
    if os.path.isdir(path := os.path.expanduser(model)):
        return Path(path)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, local_files_only=True))
    except (OSError, ValueError):
        return None


def write_as(folder: Path, dtype: DType, start: Path | None) -> Rounding:
    """Give a Hugging Face folder's weights this dtype, file by file, and have config.json say so.

    Each file is whole at any moment: the old or the new.

    Args:
        folder: with safetensors files.
        start: folder of the model that training started from, for the count; None counts nothing.

    Raises:
        OSError: a file cannot be read or written.
    """
    rounding = Rounding()
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as tensors:
            if start is None and _is_all(tensors, dtype):
                continue
            rounded = {}
            for name in tensors.keys():  # noqa: SIM118
                trained = tensors.get_tensor(name)
                rounded[name] = _as(trained, dtype)
                if start is not None:
                    rounding += _count(start, name, trained, rounded[name])
            metadata = tensors.metadata()
        _replace(file, rounded, metadata)
    say_dtype(folder, dtype)
    return rounding


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, in order of their names."""
    return sorted(folder.glob("*.safetensors"))


def start_tensor(start: Path, name: str) -> Tensor | None:
    """A tensor of the start model by name; None where it has none of that name."""
    index = start / _INDEX
    if index.is_file():
        file = json.loads(index.read_text("utf-8"))["weight_map"].get(name)
        holders = [start / file] if file else []
    else:
        holders = weight_files(start)
    for path in filter(Path.is_file, holders):  # the Hub's cache may lack some
        with safe_open(path, framework="pt") as tensors:
            if name in tensors.keys():  # noqa: SIM118
                return tensors.get_tensor(name)
    return None


def rounding_of(before: Tensor, after: Tensor, rounded: Tensor) -> Rounding:
    """Counts of one tensor: the start model's, the trained one, and that as it is written."""
    before, after = before.float(), after.float()
    changed = after != before
    undone = changed & (rounded.float() == before.to(rounded.dtype).float())
    return Rounding(int(changed.sum()), int(undone.sum()), changed.numel())


def _count(start: Path, name: str, trained: Tensor, rounded: Tensor) -> Rounding:
    before = start_tensor(start, name)
    if before is None or before.shape != trained.shape:
        return Rounding()
    return rounding_of(before, trained, rounded)


def _is_all(tensors: Any, dtype: DType) -> bool:
    """Whether every number of an opened file has this dtype; integers do not count."""
    found = {str(tensors.get_slice(name).get_dtype()) for name in tensors.keys()}  # noqa: SIM118
    return {one for one in found if "F" in one} <= {_SAFETENSORS_NAMES[dtype]}


def _as(tensor: Tensor, dtype: DType) -> Tensor:
    return tensor.to(getattr(torch, dtype)).contiguous() if tensor.is_floating_point() else tensor


def _replace(file: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None) -> None:
    with io.replacing(file) as draft:
        save_file(tensors, draft, metadata=metadata)


def say_dtype(folder: Path, dtype: DType) -> None:
    """In config.json, and the sum of bytes in the index where there is one."""
    for name, changes in _described(folder, dtype):
        path = folder / name
        content = json.loads(path.read_text("utf-8"))
        io.write(path, json.dumps(content | changes, indent=2).encode() + b"\n")


def _described(folder: Path, dtype: DType) -> Iterator[tuple[str, dict[str, object]]]:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    yield "config.json", _with_dtype(config, dtype)
    if (folder / _INDEX).is_file():
        metadata = json.loads((folder / _INDEX).read_text("utf-8")).get("metadata", {})
        yield _INDEX, {"metadata": metadata | {"total_size": _tensor_bytes(folder)}}


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


def _tensor_bytes(folder: Path) -> int:
    total = 0
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                total += tensors.get_tensor(name).nbytes
    return total
