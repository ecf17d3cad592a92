"""How large a checkpoint of verl's FSDP engine will be, worked out from the model's configuration."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

FLOAT32 = 4
"""Bytes; verl keeps and writes weights and Adam's two moments in float32, and its Hugging Face folder too."""
BYTES = {"float32": FLOAT32, "bfloat16": 2}
"""Of one weight in a Hugging Face folder, by save.weights_dtype."""
GB = 1e9


def parameter_count(model: str, trust_remote_code: bool = False) -> int:
    """Parameters of a Hugging Face model, by its configuration alone: nothing is allocated or read besides.

    Raises:
        OSError, ValueError: transformers cannot load the configuration or has no such model.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    return sum(weight.numel() for weight in made.parameters())


def checkpoint_bytes(
    parameters: int, contents: Collection[str], weights_dtype: str = "float32"
) -> dict[str, int]:
    """Bytes of each part of verl's `checkpoint.save_contents`, over all ranks; all weights are trained."""
    of_a_weight = {"model": FLOAT32, "optimizer": 2 * FLOAT32, "hf_model": BYTES[weights_dtype]}
    return {name: parameters * size for name, size in of_a_weight.items() if name in contents}


def draft_bytes(sizes: Mapping[str, int], weights_dtype: str) -> int:
    """What a checkpoint takes for a while beyond its size: verl's float32 weights, until they are rounded."""
    if weights_dtype == "float32":
        return 0
    return sizes.get("hf_model", 0) * FLOAT32 // BYTES[weights_dtype]


def most_at_once(kept: int | None, saves: int) -> int:
    """Checkpoints on the disk at the worst moment: those kept, and the next one before the oldest goes.

    Args:
        kept: trainer.max_actor_ckpt_to_keep; None keeps all.
        saves: that the run will make, at least 1.
    """
    return saves if kept is None else min(saves, kept + 1)


def sentence(sizes: Mapping[str, int], at_once: int, free: int, folder: Path) -> str:
    """For a person, in one line: the size by part, how many there will be, the free space."""
    parts = ", ".join(f"{name} {size / GB:.3g}" for name, size in sizes.items())
    whole = sum(sizes.values())
    line = f"a checkpoint takes about {whole / GB:.3g} GB ({parts})"
    if at_once > 1:
        line += f", up to {at_once} at once {at_once * whole / GB:.3g} GB"
    return f"{line}; {free / GB:.3g} GB are free in {folder}"


def free_bytes(folder: str | Path) -> tuple[int, Path]:
    """Free bytes where `folder` is or will be, and the existing folder that was asked."""
    found = Path(folder).absolute()
    while not found.is_dir():
        found = found.parent
    return shutil.disk_usage(found).free, found


def steps_saved(frequency: int, steps: int) -> int:
    """Checkpoints that trainer.save_freq gives in so many steps; the last step is always one."""
    return 1 if frequency < 1 else -(-steps // frequency)
