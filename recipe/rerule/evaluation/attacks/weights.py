"""Model folders that attacks write: whole or absent after a kill, with the record of their protocol.

`rewritten` changes a model's weights tensor by tensor, with one weight file in memory at a time. Dtype, file
names, configuration and tokenizer are those of the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from recipe.rerule import io
from recipe.rerule.io import Kind, new_folder, stamp_folder
from recipe.rerule.process import Progress
from recipe.rerule.runs.weights import Weights, config_of, copy_others, write_index

KIND = Kind("rerule/attacked_model", "attack.json")
"""The folders that are written; the marker is the record of the protocol."""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@contextmanager
def model_folder(out: Path, record: dict[str, Any]) -> Iterator[Path]:
    """A draft that becomes `out` with its record when the block ends; an earlier folder of ours is replaced.

    The block may add to the record.
    """
    with new_folder(out, True, KIND) as folder:
        yield folder
        content = stamp_folder(KIND, folder) | record
        io.write(folder / KIND.marker, json.dumps(content, indent=1).encode() + b"\n")
        io.flush_tree(folder)


def is_finished(folder: Path) -> bool:
    """Whether an earlier command finished it."""
    return (folder / KIND.marker).is_file()


def rewritten(
    weights: Weights,
    out: Path,
    change: Callable[[str, Tensor], Tensor],
    record: dict[str, Any],
    untied: bool = False,
) -> None:
    """Write a model's folder with changed weights.

    Args:
        change: the new tensor of a name and its tensor.
        record: of the protocol, written after the last change.
        untied: whether the output layer keeps what the embedding had where both are one tensor.
    """
    total, places = 0, dict(weights.files)
    with (
        model_folder(out, record) as folder,
        Progress(f"writing {out.name}", len(weights.files), "tensors") as progress,
    ):
        copy_others(weights.folder, folder, KIND.marker)
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
            total += sum(tensor.nbytes for tensor in after.values())
        write_index(Weights(weights.folder, places), folder, {"total_size": total})
