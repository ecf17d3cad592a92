"""What is wrong with a model's folder, found from its files before anything loads it.

Looked at: which files are there, header and length of every weight file, the shape of the embeddings, the
numbers of the layers, and the values of the smallest tensors, up to SCANNED bytes in all. That takes about a
second for a model of any size.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from recipe.rerule.runs import checkpoints

SCANNED = 64 * 2**20
"""Bytes of tensors, the smallest first, whose values are looked at for NaN and infinity.

All norms and biases of a large model are among them, and every tensor of a small one. An update with a NaN
gradient makes every tensor NaN.
"""

_SINGLE = ("model.safetensors", "pytorch_model.bin")
_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# In the order in which transformers looks for them.
_WEIGHTS = (_SINGLE[0], _INDICES[0], _SINGLE[1], _INDICES[1])
_ADAPTER = "adapter_config.json"
_EMBEDDINGS = re.compile(r"(^|\.)(embed_tokens|wte|embed_in|word_embeddings)\.weight$")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_UNMERGED = ".base_layer."
_TEXT_MODELS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""How transformers' names of classes end; the last is that of models that read images too, and of T5."""
_LFS_POINTER = b"version https://git-lfs"
# How files of torch.save begin: zip, and the pickle of releases before 1.6.
_ZIP, _LEGACY = b"PK\x03\x04", b"\x80\x02"


class _Found(Exception):  # noqa: N818  (carries an answer through the checks, and never leaves this module)
    """What is wrong with the folder, in words that follow its name."""


class _Tensor(NamedTuple):
    """One tensor of a safetensors file, by the file's header; `size` in bytes."""

    file: Path
    name: str
    shape: list[int]
    dtype: str
    size: int


def check(path: str | None, key: str) -> None:
    """Refuse a folder whose model cannot be loaded. A name on the Hub is left to transformers.

    Raises ValueError: naming `key`, the folder and what is wrong with it.
    """
    folder = Path(path or "").expanduser()
    if path and folder.exists() and (reason := problem(folder)) is not None:
        raise ValueError(f"{key} is {path}, which {reason}")


def check_adapter(path: str | None, key: str) -> None:
    """Refuse a folder that holds no LoRA adapter as peft writes them. A name on the Hub is left to peft.

    Raises ValueError: naming `key`, the folder and what is wrong with it.
    """
    folder = Path(path or "").expanduser()
    if not path or not folder.is_dir():
        return
    for names in ((_ADAPTER,), ("adapter_model.safetensors", "adapter_model.bin")):
        if not any((folder / name).is_file() for name in names):
            raise ValueError(f"{key} is {path}, which holds no {' or '.join(names)}; give a folder of peft")


def problem(folder: Path) -> str | None:
    """Why the model of a folder cannot be used, in words that follow the folder's name; None if it can."""
    return _found(_check_whole, folder)


def other_kind(folder: Path) -> str | None:
    """What a folder holds instead of a whole model, in words that follow its name; None without a sign."""
    return _found(_check_kind, folder)


def vocabulary_size(path: str, trust_remote_code: bool) -> int | None:
    """How many tokens the model knows by its configuration; None where that does not say.

    Raises OSError, ValueError: transformers cannot read the configuration.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    return getattr(config.get_text_config(), "vocab_size", None)


def _found(look: Callable[[Path], None], folder: Path) -> str | None:
    try:
        look(folder)
    except _Found as found:
        return str(found)
    return None


def _check_whole(folder: Path) -> None:
    _check_kind(folder)
    if not (folder / "config.json").is_file():
        raise _Found("holds no config.json; give a Hugging Face folder or name")
    config = _json(folder / "config.json")
    _check_text(config)
    first = next((name for name in _WEIGHTS if (folder / name).is_file()), None)
    if first is None:
        raise _Found(f"holds no weights: none of {', '.join(_WEIGHTS)} is there; copy the whole folder again")
    files = _shards(folder, first) if first in _INDICES else [folder / first]
    for file in files:
        _check_beginning(file)
    if first in (_SINGLE[0], _INDICES[0]):
        tensors = [tensor for file in files for tensor in _headers(file)]
        _check_tensors(tensors, config)
        _check_finite(tensors)


def _check_kind(folder: Path) -> None:
    """Refuse what is no folder of a whole model: files, runs, adapters."""
    if not folder.is_dir():
        raise _Found("is a file; give the folder that holds config.json and the weights")
    if not (folder / "config.json").is_file():
        # Of a run of stage 1 or 2, or a checkpoint, the model is in a folder inside.
        newest = checkpoints.newest_complete(folder)
        run = [] if newest is None else [checkpoints.step_folder(folder, newest) / "actor" / "huggingface"]
        places = [folder / "model", *run, folder / "actor" / "huggingface", folder / "huggingface"]
        for place in places:
            if (place / "config.json").is_file():
                raise _Found(f"is the folder of a run; its model is in {place}")
        if (folder / _ADAPTER).is_file():
            base = _json(folder / _ADAPTER).get("base_model_name_or_path") or "its base model"
            raise _Found(
                f"holds a LoRA adapter alone; merge it into {base} with peft's merge_and_unload(), or train "
                "that model with the adapter as lora_adapter_path"
            )
    elif (folder / _ADAPTER).is_file():
        raise _Found(
            f"holds {_ADAPTER} as well as a model: transformers would add the adapter, and vLLM would not; "
            "take it out, or merge it with peft's merge_and_unload()"
        )


def _check_text(config: dict[str, Any]) -> None:
    """Refuse a model that does not continue a text, as transformers names its classes; its own code may."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names or "auto_map" in config:
        return
    if config.get("is_encoder_decoder") or not any(f"{name}".endswith(_TEXT_MODELS) for name in names):
        raise _Found(
            f"holds a {names[0]}, which does not continue a text; give a causal language model, whose class "
            "is named as in LlamaForCausalLM"
        )


def _shards(folder: Path, index: str) -> list[Path]:
    names = _json(folder / index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(n, str) for n in names.values()):
        raise _Found(f"holds {index} without a weight_map of files; copy it again")
    files = [folder / name for name in dict.fromkeys(names.values())]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        number = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise _Found(f"lacks {missing[0]}{number}, which {index} names; copy it there")
    return files


def _check_beginning(file: Path) -> None:
    with file.open("rb") as opened:
        beginning = opened.read(len(_LFS_POINTER))
    if not beginning:
        raise _Found(f"holds {file.name}, which is empty; copy it again")
    if beginning == _LFS_POINTER:
        raise _Found(f"holds {file.name}, which only stands for the weights: run git lfs pull")
    whole_zip = beginning.startswith(_ZIP) and zipfile.is_zipfile(file)
    if file.suffix == ".bin" and not whole_zip and not beginning.startswith(_LEGACY):
        raise _Found(f"holds {file.name}, which is no file of torch.save, or is cut off; copy it again")


def _headers(file: Path) -> list[_Tensor]:
    """What the file's header says of its tensors; the library compares it with the file's length."""
    from safetensors import SafetensorError, safe_open

    tensors = []
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (no mapping: it has no iterator)
                part = opened.get_slice(name)
                shape, dtype = part.get_shape(), part.get_dtype()
                bits = re.search(r"\d+", dtype)
                size = math.prod(shape) * (int(bits[0]) if bits else 8) // 8
                tensors.append(_Tensor(file, name, shape, dtype, size))
    except SafetensorError as error:
        raise _Found(f"holds {file.name}, which is cut off or damaged ({error}); copy it again") from None
    return tensors


def _check_tensors(tensors: list[_Tensor], config: dict[str, Any]) -> None:
    """Refuse weights that are not those of the configuration: transformers would make up what is missing."""
    if not tensors:
        raise _Found("holds weights without any tensor; copy them again")
    if (unmerged := next((t.name for t in tensors if _UNMERGED in t.name), None)) is not None:
        raise _Found(
            f"holds {unmerged}, so its LoRA adapter is not merged; give a model in which it is, as runs "
            "of ReRULE write it"
        )
    if "text_config" in config:
        return  # several models in one, with layers and embeddings of their own
    vocabulary, layers = config.get("vocab_size"), config.get("num_hidden_layers")
    for tensor in tensors:
        if _EMBEDDINGS.search(tensor.name) and vocabulary not in (None, *tensor.shape[:1]):
            raise _Found(
                f"holds {tensor.name} of shape {tensor.shape}, but config.json says vocab_size {vocabulary}; "
                "the two are of different models"
            )
    found = {int(match[1]) for tensor in tensors if (match := _LAYER.search(tensor.name))}
    missing = sorted(set(range(layers)) - found) if found and isinstance(layers, int) else []
    if missing:
        raise _Found(
            f"holds no weights of layer {missing[0]}, but config.json says num_hidden_layers {layers}; copy "
            "the whole folder again"
        )


def _check_finite(tensors: list[_Tensor]) -> None:
    """Look at the values of the smallest tensors, SCANNED bytes in all."""
    from safetensors import safe_open

    left = SCANNED
    for tensor in sorted(tensors, key=lambda tensor: tensor.size):
        left -= tensor.size
        if left < 0:
            return
        if tensor.dtype not in ("F64", "F32", "F16", "BF16"):
            continue
        with safe_open(tensor.file, framework="pt") as opened:
            if not opened.get_tensor(tensor.name).isfinite().all():
                raise _Found(
                    f"holds {tensor.name} with NaN or infinity in {tensor.file.name}; take an earlier "
                    "checkpoint"
                )


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _Found(f"holds {file.name}, which is not JSON ({' '.join(str(error).split())[:80]})") from None
    if not isinstance(content, dict):
        raise _Found(f"holds {file.name}, which holds no JSON object")
    return content
