"""Model folders that attacks write: whole or absent after a kill.

`rewritten` changes a model's weights tensor by tensor, with one weight file in memory at a time. Dtype, file
names, configuration and tokenizer are those of the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from recipe.rerule import io
from recipe.rerule.evaluation.attacks.attack import CHANGED
from recipe.rerule.io import new_folder, stamp_folder
from recipe.rerule.process import Progress
from recipe.rerule.runs.weights import Weights, config_of, copy_others, write_index

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@contextmanager
def model_folder(out: Path) -> Iterator[Path]:
    """A draft that becomes `out` when the block ends; an earlier folder of ours is replaced."""
    with new_folder(out, True, CHANGED) as folder:
        yield folder
        io.write(folder / CHANGED.marker, json.dumps(stamp_folder(CHANGED, folder)).encode() + b"\n")
        io.flush_tree(folder)


def rewritten(
    weights: Weights, out: Path, change: Callable[[str, Tensor], Tensor], untied: bool = False
) -> None:
    """Write a model's folder with changed weights.

    Args:
        change: the new tensor of a name and its tensor.
        untied: whether the output layer keeps what the embedding had where both are one tensor.
    """
    places = dict(weights.files)
    with (
        model_folder(out) as folder,
        Progress(f"writing {out.name}", len(weights.files), "tensors") as progress,
    ):
        copy_others(weights.folder, folder, CHANGED.marker)
        if untied and config_of(weights.folder).get("tie_word_embeddings") is not False:
            config = config_of(weights.folder) | {"tie_word_embeddings": False}
            io.write(folder / "config.json", json.dumps(config, indent=2).encode() + b"\n")
        for file, names in weights.by_file().items():
            with safe_open(file, framework="pt") as tensors:
                before = {name: tensors.get_tensor(name) for name in names}
                metadata: dict[str, str] = tensors.metadata() or {"format": "pt"}
            after = {}
            for name, tensor in before.items():
                after[name] = change(name, tensor)
                progress.advance()
            if untied and HEAD not in weights.files and EMBEDDING in before:
                after[HEAD], places[HEAD] = before[EMBEDDING], file
            save_file(after, folder / file.name, metadata=metadata)
        write_index(Weights(weights.folder, places), folder, {})
