"""The safetensors weights of a Hugging Face folder, for commands that write changed ones file by file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from recipe.rerule import io
from recipe.rerule.runs import model_checks

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_COPIED = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")


@dataclass(frozen=True)
class Weights:
    """The safetensors weights of a folder.

    Attributes:
        folder: of the model.
        files: the file of each tensor by name, as the folder's index or its one file has them.
    """

    folder: Path
    files: Mapping[str, Path]

    def without(self, name: str) -> Weights:
        """All but one tensor."""
        return Weights(self.folder, {other: file for other, file in self.files.items() if other != name})

    def by_file(self) -> dict[Path, list[str]]:
        """Names of tensors by file, files in order of their names."""
        groups: dict[Path, list[str]] = {file: [] for file in sorted({*self.files.values()})}
        for name, file in self.files.items():
            groups[file].append(name)
        return groups

    def shapes(self) -> dict[str, list[int]]:
        """The shape of each tensor by name, from the files' headers."""
        shapes: dict[str, list[int]] = {}
        for file, names in self.by_file().items():
            with safe_open(file, framework="pt") as tensors:
                shapes |= {name: list(tensors.get_slice(name).get_shape()) for name in names}
        return shapes


def read_weights(folder: Path, use: str) -> Weights:
    """Which tensors a folder has, and where.

    `use`: what is to be done with them, after "cannot be", for the message.

    Raises ValueError: the folder has no whole model, no safetensors or quantised weights.
    """
    if (reason := model_checks.problem(folder)) is not None:
        raise ValueError(f"{folder} {reason}")
    if "quantization_config" in config_of(folder):
        raise ValueError(f"{folder} holds quantised weights, which cannot be {use}; give full weights")
    if (folder / _SINGLE).is_file():
        with safe_open(folder / _SINGLE, framework="pt") as tensors:
            return Weights(folder, dict.fromkeys(tensors.keys(), folder / _SINGLE))
    if (folder / _INDEX).is_file():
        weight_map = json.loads((folder / _INDEX).read_text("utf-8"))["weight_map"]
        return Weights(folder, {name: folder / file for name, file in weight_map.items()})
    raise ValueError(f"{folder} holds no {_SINGLE} and no {_INDEX}; save the model as safetensors")


def config_of(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises OSError, ValueError."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    return config


def write_index(weights: Weights, folder: Path, metadata: Mapping[str, Any]) -> None:
    """The index of files that have the names and tensors of those of `weights`; none for a single file."""
    if [file.name for file in weights.by_file()] != [_SINGLE]:
        weight_map = {name: file.name for name, file in sorted(weights.files.items())}
        content = {"metadata": dict(metadata), "weight_map": weight_map}
        io.write(folder / _INDEX, json.dumps(content).encode())


def copy_others(source: Path, folder: Path, marker: str) -> None:
    """Copy what a model needs besides its weights: configuration, tokenizer, chat template, code.

    `marker`: name of a file that says who wrote a folder, which is not copied.
    """
    for path in sorted(source.iterdir()):
        wanted = path.suffix in _COPIED and not path.name.endswith(".index.json") and path.name != marker
        if wanted and path.is_file():
            shutil.copyfile(path, folder / path.name)
