"""The dtype of a written Hugging Face folder, and what rounding to it undoes.

verl trains in float32 and writes its folder in float32, but leaves the dtype of the start model in
config.json, so that whoever loads the folder with dtype "auto" rounds without knowing. Here config.json says
what the files hold. Rounding to bfloat16 (8 bits) puts a weight back to the start model's wherever training
moved it by less than half a step of that format, which is most weights at small learning rates: the share is
counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from recipe.rerule.replay import durable

DType = Literal["float32", "bfloat16"]
DTYPES: tuple[str, ...] = get_args(DType)
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Rounding:
    """Weights that training changed, and those of them that rounding put back to the start model's value."""

    changed: int = 0
    undone: int = 0

    def __add__(self, other: Rounding) -> Rounding:
        return Rounding(self.changed + other.changed, self.undone + other.undone)

    def sentence(self) -> str:
        """For a person, in one line."""
        if not self.changed:
            return "no weight differs from the start model's"
        share = self.undone / self.changed
        return (
            f"rounding to bfloat16 undoes the change of {share:.1%} of the {self.changed:,} changed weights"
        )


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
            found = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
            metadata = tensors.metadata()
        rounded = {name: _as(tensor, dtype) for name, tensor in found.items()}
        if start is not None:
            rounding += sum((_count(found, rounded, name, start) for name in found), Rounding())
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
        files = [start / file] if file else []
    else:
        files = weight_files(start)
    for path in files:
        with safe_open(path, framework="pt") as tensors:
            if name in tensors.keys():  # noqa: SIM118
                return tensors.get_tensor(name)
    return None


def rounding_of(before: Tensor, after: Tensor, rounded: Tensor) -> Rounding:
    """Counts of one tensor: the start model's, the trained one, and that as it is written."""
    before, after = before.float(), after.float()
    changed = after != before
    undone = changed & (rounded.float() == before.to(rounded.dtype).float())
    return Rounding(int(changed.sum()), int(undone.sum()))


def _count(found: Mapping[str, Tensor], rounded: Mapping[str, Tensor], name: str, start: Path) -> Rounding:
    before = start_tensor(start, name)
    if before is None or before.shape != found[name].shape:
        return Rounding()
    return rounding_of(before, found[name], rounded[name])


def _as(tensor: Tensor, dtype: DType) -> Tensor:
    return tensor.to(getattr(torch, dtype)).contiguous() if tensor.is_floating_point() else tensor


def _replace(file: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None) -> None:
    draft = file.with_name(file.name + ".tmp")
    save_file(tensors, draft, metadata=metadata)
    durable.flush(draft)
    draft.replace(file)


def say_dtype(folder: Path, dtype: DType) -> None:
    """In config.json, and the sum of bytes in the index where there is one."""
    for name, changes in _described(folder, dtype):
        path = folder / name
        content = json.loads(path.read_text("utf-8"))
        durable.write(path, json.dumps(content | changes, indent=2).encode() + b"\n")


def _described(folder: Path, dtype: DType) -> Iterator[tuple[str, dict[str, object]]]:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    # transformers 5 writes "dtype"; earlier versions, and readers of them, know "torch_dtype".
    key = "torch_dtype" if "torch_dtype" in config else "dtype"
    yield "config.json", {key: dtype}
    if (folder / _INDEX).is_file():
        metadata = json.loads((folder / _INDEX).read_text("utf-8")).get("metadata", {})
        yield _INDEX, {"metadata": metadata | {"total_size": _tensor_bytes(folder)}}


def _tensor_bytes(folder: Path) -> int:
    total = 0
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as tensors:
            total += sum(tensors.get_tensor(name).nbytes for name in tensors.keys())  # noqa: SIM118
    return total
