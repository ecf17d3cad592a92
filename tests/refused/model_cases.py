"""Model folders, run folders and checkpoints to resume from that were tried."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.rerule.runs import checkpoints
from tests.made_models import CONFIG, VOCABULARY, put_model, tensors
from tests.made_tokenizers import CHATML_TEMPLATE, LLAMA3_TEMPLATE, byte_level
from tests.refused.cases import Case


@dataclass(frozen=True)
class ModelCase(Case):
    """A model's folder that stage 1, stage 2, check and evaluate are given.

    make: turns a whole model's folder into the one that is tried, and returns the path to give.
    line: what the refusal holds.
    """

    make: Callable[[Path], Path]
    line: str = ""


@dataclass(frozen=True)
class FolderCase(Case):
    """A run folder. make: makes it below an empty folder, and returns the path to give. line: as above."""

    make: Callable[[Path], str]
    line: str = ""


@dataclass(frozen=True)
class ResumeCase(Case):
    """A run folder with a checkpoint of step 3. make: changes it. mode: of resuming. line: as above."""

    make: Callable[[Path], None]
    mode: str = "auto"
    line: str = ""


WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
UNMERGED = "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def _save(file: Path, content: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    save_file(content, file, metadata={"format": "pt"})


def _weights(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], Path]:
    """The folder with other tensors."""

    def make(folder: Path) -> Path:
        content = tensors()
        change(content)
        _save(folder / WEIGHTS, content)
        return folder

    return make


def _content(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    """The folder with other bytes in one of its files."""

    def make(folder: Path) -> Path:
        (folder / name).write_bytes(change((folder / name).read_bytes()))
        return folder

    return make


def _config(**changes: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "config.json").write_text(json.dumps(CONFIG | changes))
        return folder

    return make


def _without(*patterns: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        for pattern in patterns:
            for file in folder.glob(pattern):
                file.unlink()
        return folder

    return make


def _sharded(folder: Path) -> Path:
    content = tensors()
    names = {tensor: SHARDS[number % 2] for number, tensor in enumerate(content)}
    for shard in SHARDS:
        _save(folder / shard, {tensor: content[tensor] for tensor in content if names[tensor] == shard})
    (folder / INDEX).write_text(json.dumps({"weight_map": names}))
    (folder / WEIGHTS).unlink()
    return folder


def _shards(change: Callable[[Path], None]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        change(_sharded(folder))
        return folder

    return make


def _torch_file(change: Callable[[bytes], bytes] = bytes) -> Callable[[Path], Path]:
    """The folder with pytorch_model.bin alone, its bytes changed."""

    def make(folder: Path) -> Path:
        import torch

        torch.save(tensors(), folder / "pytorch_model.bin")
        (folder / WEIGHTS).unlink()
        return _content("pytorch_model.bin", change)(folder)

    return make


def _adapter(alone: bool) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "some/base"}')
        (folder / "adapter_model.safetensors").write_bytes((folder / WEIGHTS).read_bytes())
        return _without("config.json", WEIGHTS)(folder) if alone else folder

    return make


def _inside(name: str) -> Callable[[Path], Path]:
    """A folder around the model's, which is `name` in it."""

    def make(folder: Path) -> Path:
        outer = folder.with_name("outer")
        (outer / name).parent.mkdir(parents=True)
        folder.rename(outer / name)
        return outer

    return make


def _nan(name: str, value: float = float("nan")) -> Callable[[Path], Path]:
    def change(content: dict[str, Any]) -> None:
        content[name].view(-1)[3] = value

    return _weights(change)


def _half(content: dict[str, Any]) -> None:
    for name, tensor in content.items():
        content[name] = tensor.bfloat16()


def _model(name: str, make: Callable[[Path], Path], line: str = "") -> ModelCase:
    return ModelCase("model folders", name, "refused" if line else "valid", make, line)


MODELS = [
    _model("a whole model", lambda folder: folder),
    _model("several files of weights", _sharded),
    _model("bfloat16", _weights(_half)),
    _model("weights of torch.save", _torch_file()),
    _model("a tokenizer of fewer tokens than the model", _config(vocab_size=VOCABULARY)),
    _model("a config.json alone", _without(WEIGHTS), "holds no weights: none of model.safetensors, "),
    _model("an empty folder", _without("*"), "no"),
    _model("no config.json", _without("config.json"), "no"),
    _model("a file", lambda folder: folder / WEIGHTS, "is a file; give the folder that holds config.json"),
    _model("config.json cut off", _content("config.json", lambda b: b[:40]), "config.json"),
    _model("config.json that is a list", _content("config.json", lambda b: b"[]"), "config.json"),
    _model("config.json of 10,000 lists", _content("config.json", lambda b: b"[" * 10_000), "config.json"),
    _model(
        "weights cut off",
        _content(WEIGHTS, lambda b: b[:-100]),
        f"holds {WEIGHTS}, which is cut off or damaged",
    ),
    _model(
        "weights cut off in the header",
        _content(WEIGHTS, lambda b: b[:60]),
        f"holds {WEIGHTS}, which is cut off",
    ),
    _model(
        "weights with bytes at the end",
        _content(WEIGHTS, lambda b: b + b"x"),
        f"holds {WEIGHTS}, which is cut off",
    ),
    _model(
        "weights of zeros",
        _content(WEIGHTS, lambda b: bytes(len(b))),
        f"holds {WEIGHTS}, which is cut off or",
    ),
    _model(
        "weights that are HTML",
        _content(WEIGHTS, lambda b: b"<!DOCTYPE html>"),
        f"holds {WEIGHTS}, which is cut",
    ),
    _model(
        "an empty file of weights",
        _content(WEIGHTS, lambda b: b""),
        f"holds {WEIGHTS}, which is empty; copy it",
    ),
    _model(
        "a pointer of Git LFS",
        _content(WEIGHTS, lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"),
        f"holds {WEIGHTS}, which only stands for the weights: run git lfs pull",
    ),
    _model("no tensors", _weights(dict.clear), "holds weights without any tensor"),
    _model(
        "a missing file of weights",
        _shards(lambda f: (f / SHARDS[1]).unlink()),
        f"lacks {SHARDS[1]}, which {INDEX} names",
    ),
    _model(
        "an index that is no JSON",
        _shards(lambda f: _put(f / INDEX, b"{")),
        f"holds {INDEX}, which is not JSON",
    ),
    _model(
        "an index of nothing",
        _shards(lambda f: _put(f / INDEX, b"{}")),
        f"holds {INDEX} without a weight_map",
    ),
    _model(
        "one of the files cut off",
        _shards(lambda f: _put(f / SHARDS[0], (f / SHARDS[0]).read_bytes()[:-4])),
        f"holds {SHARDS[0]}, which is cut off or damaged",
    ),
    _model("NaN in a norm", _nan("model.norm.weight"), "holds model.norm.weight with NaN or infinity"),
    _model(
        "infinity in a layer",
        _nan("model.layers.1.input_layernorm.weight", float("inf")),
        "with NaN or infinity",
    ),
    _model(
        "NaN in the embeddings", _nan("model.embed_tokens.weight"), "holds model.embed_tokens.weight with NaN"
    ),
    _model(
        "a layer missing",
        _weights(lambda content: content.pop("model.layers.0.input_layernorm.weight")),
        "holds no weights of layer 0, but config.json says num_hidden_layers 2",
    ),
    _model(
        "the configuration of a deeper model",
        _config(num_hidden_layers=4),
        "holds no weights of layer 2, but",
    ),
    _model(
        "the configuration of another vocabulary",
        _config(vocab_size=500),
        f"holds model.embed_tokens.weight of shape [{VOCABULARY}, 8], but config.json says vocab_size 500",
    ),
    _model(
        "torch.save cut off",
        _torch_file(lambda b: b[:-100]),
        "holds pytorch_model.bin, which is no file of torch",
    ),
    _model(
        "torch.save that is text",
        _torch_file(lambda b: b"hello"),
        "holds pytorch_model.bin, which is no file of",
    ),
    _model(
        "a LoRA adapter alone",
        _adapter(True),
        "holds a LoRA adapter alone; merge it into some/base with peft's",
    ),
    _model(
        "a LoRA adapter that is not merged",
        _weights(lambda content: content.update({UNMERGED: content["model.norm.weight"].clone()})),
        f"holds {UNMERGED}, so its LoRA adapter is not merged",
    ),
    _model("a LoRA adapter in a model", _adapter(False), "holds adapter_config.json as well as a model"),
    _model("the folder of a stage-1 run", _inside("model"), "is the folder of a run; its model is in"),
    _model("a checkpoint of stage 1", _inside("huggingface"), "is the folder of a run; its model is in"),
    _model("a relative path to nothing", lambda folder: Path("no-such-model"), "no-such-model"),
    _model("a path to nothing", lambda folder: folder / "none", "none"),
]


def _put(file: Path, content: bytes) -> None:
    file.write_bytes(content)


TRAINED = "tokenizers and code of stages 1 and 2"


def _no_tokenizer(folder: Path) -> Path:
    return _without("tokenizer*")(folder)


def _small_vocabulary(folder: Path) -> Path:
    """A model that knows 40 tokens, with the tokenizer of a larger one."""
    import torch

    _config(vocab_size=40)(folder)
    _save(folder / WEIGHTS, tensors() | {"model.embed_tokens.weight": torch.zeros(40, 8)})
    return folder


def _broken_tokenizer(folder: Path) -> Path:
    _put(folder / "tokenizer.json", b"{")
    return folder


def _own_code(folder: Path) -> Path:
    """A model that brings the class of its configuration: Python code, which would leave a file."""
    (folder / "own.py").write_text(f"open({str(folder / 'executed')!r}, 'w')")
    return _config(model_type="own", auto_map={"AutoConfig": "own.Config"})(folder)


def _ends(
    generation: list[int] | None, template: str = LLAMA3_TEMPLATE, **config: Any
) -> Callable[[Path], Path]:
    """A model that stops at these tokens; of its tokenizer EOS is 1, and the template ends a turn with 4."""

    def make(folder: Path) -> Path:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
        if generation is None:
            (folder / "generation_config.json").unlink()
        byte_level(template).save_pretrained(folder)
        return _config(**config)(folder)

    return make


_EOS = "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
TOKENIZERS = [
    ModelCase(TRAINED, "an end among several", "valid", _ends([1, 4])),
    ModelCase(TRAINED, "an end of config.json", "valid", _ends(None, eos_token_id=4)),
    ModelCase(TRAINED, "an end behind a newline", "valid", _ends([4], CHATML_TEMPLATE)),
    ModelCase(TRAINED, "an end before EOS", "valid", _ends([1], LLAMA3_TEMPLATE + _EOS)),
    ModelCase(
        TRAINED,
        "an end where sampling goes on",
        "refused",
        _ends([2]),
        "ends an answer with '<|eot|>' (id 4), but sampling stops at '<|end|>' (id 1) and '<|head|>' (id 2)",
    ),
    ModelCase(
        TRAINED,
        "an end where config.json goes on",
        "refused",
        _ends(None, CHATML_TEMPLATE),
        "ends an answer with '<|eot|>' (id 4), but sampling stops at '<|end|>' (id 1)",
    ),
    ModelCase(
        TRAINED,
        "no end",
        "refused",
        _ends([1, 4], "{% for message in messages %}{{ message.content }}\n{% endfor %}"),
        "ends an answer with '.' (id ",
    ),
    ModelCase(TRAINED, "code of the model's own", "refused", _own_code, "must be executed to correctly"),
    ModelCase(TRAINED, "none", "refused", _no_tokenizer, "has no tokenizer that transformers"),
    ModelCase(TRAINED, "cut off", "refused", _broken_tokenizer, "has no tokenizer that"),
    ModelCase(
        TRAINED,
        "of a larger model",
        "refused",
        _small_vocabulary,
        "config.json says vocab_size 40",
    ),
]


def _touched(folder: Path) -> str:
    (folder / "file").touch()
    return str(folder / "file")


def _link(folder: Path) -> str:
    (folder / "link").symlink_to(folder / "nothing")
    return str(folder / "link")


def _folder(name: str, make: Callable[[Path], str], line: str = "") -> FolderCase:
    return FolderCase("run folders", name, "refused" if line else "valid", make, line)


FOLDERS = [
    _folder("a new folder", lambda folder: str(folder / "new")),
    _folder("a folder in new folders", lambda folder: str(folder / "new" / "run")),
    _folder("an empty folder", lambda folder: str(folder)),
    _folder("no name", lambda folder: "", "trainer.default_local_dir is ''"),
    _folder("a blank name", lambda folder: " ", "trainer.default_local_dir is ' '"),
    _folder("a file", _touched, "file is a file; give another folder"),
    _folder(
        "a folder below a file",
        lambda folder: _touched(folder) + "/run",
        "file is a file; give another folder",
    ),
    _folder("a link to nothing", _link, "link is a link to nothing"),
    _folder(
        "a file system without writing",
        lambda folder: "/proc/rerule/run",
        "nothing can be written to /proc (",
    ),
    _folder("a device", lambda folder: "/dev/null", "/dev/null is a file"),
    _folder(
        "a name that is too long", lambda folder: str(folder / ("x" * 300)), "no folder can have this name"
    ),
]

OTHER_USER = 54321
"""A uid that runs no test."""


def _owned(*names: str) -> Callable[[Path], None]:
    def make(checkpoint: Path) -> None:
        for name in names:
            os.chown(checkpoint / name, OTHER_USER, -1)

    return make


def _unmarked(checkpoint: Path) -> None:
    (checkpoint / "complete.json").unlink()
    _owned("data.pt")(checkpoint)


def _planted(checkpoint: Path) -> None:
    (checkpoint / "actor" / "extra_state_world_size_1_rank_0.pt").write_bytes(b"x")


def _linked(checkpoint: Path) -> None:
    """data.pt is a link to another user's file of the same size."""
    elsewhere = checkpoint.parent.parent / "elsewhere.pt"
    (checkpoint / "data.pt").rename(elsewhere)
    os.chown(elsewhere, OTHER_USER, -1)
    (checkpoint / "data.pt").symlink_to(elsewhere)


def _resume(name: str, make: Callable[[Path], None], line: str = "", mode: str = "auto") -> ResumeCase:
    return ResumeCase("checkpoints to resume from", name, "refused" if line else "valid", make, mode, line)


def _of_devices(checkpoint: Path, count: int = 2) -> None:
    (checkpoint / "actor" / "optim_world_size_1_rank_0.pt").unlink()
    for rank in range(count):
        (checkpoint / "actor" / f"optim_world_size_{count}_rank_{rank}.pt").touch()
    checkpoints.finish(checkpoint.parent, 3)


_OF_TWO = (
    "global_step_3 is of a run on 2 devices, and this one has 1 (trainer.n_gpus_per_node x trainer.nnodes)"
)
_BELONGS = (
    f"belongs to another user (uid {OTHER_USER}); going on from it would execute what its .pt files say"
)
RESUMES = [
    _resume("of the run", lambda checkpoint: None),
    _resume("other files of another user", _owned("config.json")),
    _resume("data.pt of another user", _owned("data.pt"), _BELONGS),
    _resume("an optimizer of another user", _owned("actor/optim_world_size_1_rank_0.pt"), _BELONGS),
    _resume("a link to a file of another user", _linked, _BELONGS),
    _resume("a .pt file that the run did not write", _planted, "is not named in"),
    _resume("incomplete, of another user", _unmarked, _BELONGS),
    _resume("of another user, asked for", _owned("data.pt"), mode="resume_path"),
    _resume("of two devices", _of_devices, _OF_TWO),
    _resume("of two devices, asked for", _of_devices, _OF_TWO, mode="resume_path"),
]
CASES: list[Case] = [*MODELS, *TOKENIZERS, *FOLDERS, *RESUMES]
__all__ = ["CASES", "FOLDERS", "MODELS", "RESUMES", "TOKENIZERS", "put_model"]
