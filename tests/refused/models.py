"""What cases change of a whole model's folder or of a checkpoint; a change returns the path to give."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

from recipe.rerule.runs import checkpoints, run_folder
from tests.made_models import tensors
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level

Change = Callable[[Path], Any]
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
UNMERGED = "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
NORM = "model.norm.weight"
EOS = "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
OTHER_USER = 54321
"""A uid that runs no test."""


def whole(folder: Path) -> Path:
    """Nothing is changed."""
    return folder


def put(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def save(file: Path, named: dict[str, Any]) -> None:
    save_file(named, file, metadata={"format": "pt"})


def weights(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Other tensors."""

    def make(folder: Path) -> None:
        named = load_file(folder / WEIGHTS)
        change(named)
        save(folder / WEIGHTS, named)

    return make


def tensor(name: str, shape: tuple[int, ...] | None, value: float = 1.0) -> Change:
    """A tensor of this shape, or without it."""
    if shape is None:
        return weights(lambda named: named.pop(name))
    return weights(lambda named: named.update({name: torch.full(shape, value)}))


def nan(name: str, value: float = float("nan")) -> Change:
    return weights(lambda named: named[name].view(-1)[3:4].fill_(value))


def half(named: dict[str, Any]) -> None:
    named.update({name: value.bfloat16() for name, value in named.items()})


def content(name: str, change: Callable[[bytes], bytes]) -> Change:
    """Other bytes in one of the files."""
    return lambda folder: put(folder / name, change((folder / name).read_bytes()))


def config(**changes: Any) -> Change:
    return content("config.json", lambda old: json.dumps(json.loads(old) | changes).encode())


def without(*patterns: str) -> Change:
    return lambda folder: [file.unlink() for pattern in patterns for file in folder.glob(pattern)]


def sharded(folder: Path) -> None:
    named = load_file(folder / WEIGHTS)
    files = {name: SHARDS[number % 2] for number, name in enumerate(named)}
    for shard in SHARDS:
        save(folder / shard, {name: named[name] for name in named if files[name] == shard})
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))
    (folder / WEIGHTS).unlink()


def shards(change: Change) -> Change:
    """Two files of weights, changed."""

    def make(folder: Path) -> None:
        sharded(folder)
        change(folder)

    return make


def torch_file(change: Callable[[bytes], bytes] = bytes) -> Change:
    """pytorch_model.bin alone, its bytes changed."""

    def make(folder: Path) -> None:
        torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
        (folder / WEIGHTS).unlink()
        content("pytorch_model.bin", change)(folder)

    return make


def adapter(alone: bool) -> Change:
    def make(folder: Path) -> None:
        (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "some/base"}')
        (folder / "adapter_model.safetensors").write_bytes((folder / WEIGHTS).read_bytes())
        if alone:
            without("config.json", WEIGHTS)(folder)

    return make


def inside(name: str) -> Change:
    """A folder around the model's, which is `name` in it."""

    def make(folder: Path) -> Path:
        outer = folder.with_name("outer")
        (outer / name).parent.mkdir(parents=True)
        folder.rename(outer / name)
        return outer

    return make


no_tokenizer = without("tokenizer*")
broken_tokenizer = content("tokenizer.json", lambda old: b"{")


def small_vocabulary(folder: Path) -> None:
    """A model that knows 40 tokens, with the tokenizer of a larger one."""
    config(vocab_size=40)(folder)
    save(folder / WEIGHTS, tensors() | {"model.embed_tokens.weight": torch.zeros(40, 8)})


def own_code(folder: Path) -> None:
    """A model that brings the class of its configuration: Python code, which would leave a file."""
    (folder / "own.py").write_text(f"open({str(folder / 'executed')!r}, 'w')")
    config(model_type="own", auto_map={"AutoConfig": "own.Config"})(folder)


def ends(generation: list[int] | None, template: str = LLAMA3_TEMPLATE, **changes: Any) -> Change:
    """A model that stops at these tokens; of its tokenizer EOS is 1, and the template ends a turn with 4."""

    def make(folder: Path) -> None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
        if generation is None:
            (folder / "generation_config.json").unlink()
        byte_level(template).save_pretrained(folder)
        config(**changes)(folder)

    return make


# Checkpoints of step 3.


def owned(name: str) -> Change:
    return lambda checkpoint: os.chown(checkpoint / name, OTHER_USER, -1)


def unmarked(checkpoint: Path) -> None:
    (checkpoint / "complete.json").unlink()
    owned("data.pt")(checkpoint)


def planted(checkpoint: Path) -> None:
    put(checkpoint / "actor" / "extra_state_world_size_1_rank_0.pt", b"x")


def linked(checkpoint: Path) -> None:
    """data.pt is a link to another user's file of the same size."""
    elsewhere = checkpoint.parent.parent / "elsewhere.pt"
    (checkpoint / "data.pt").rename(elsewhere)
    os.chown(elsewhere, OTHER_USER, -1)
    (checkpoint / "data.pt").symlink_to(elsewhere)


def started(setting: str) -> Change:
    """Of a run that was started with this setting."""
    key, _, value = setting.partition("=")
    return of_identity({key: yaml.safe_load(value)})


def of_rows(sha256: str) -> Change:
    return of_identity({"data.train_files": [sha256]})


def of_identity(identity: dict[str, Any]) -> Change:
    def make(checkpoint: Path) -> None:
        run_folder.begin(checkpoint.parent, stage=2)
        run_folder.keep_identity(checkpoint.parent, identity)

    return make


def of_devices(checkpoint: Path) -> None:
    """Of a run on two."""
    (checkpoint / "complete.json").unlink()
    (checkpoint / "actor" / "optim_world_size_1_rank_0.pt").unlink()
    for rank in range(2):
        (checkpoint / "actor" / f"optim_world_size_2_rank_{rank}.pt").touch()
    checkpoints.finish(checkpoint.parent, 3)
