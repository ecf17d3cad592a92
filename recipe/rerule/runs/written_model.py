"""Where a run on verl's SFT trainer has written its model, and where that ends up."""

from __future__ import annotations

import os
from pathlib import Path


def written_model(run_folder: Path) -> Path:
    """The last checkpoint's Hugging Face folder.

    Raises:
        FileNotFoundError: no checkpoint holds one.
    """
    written = run_folder.glob("global_step_*/huggingface")
    last = max(written, key=lambda path: int(path.parent.name.removeprefix("global_step_")), default=None)
    if last is None:
        raise FileNotFoundError(f"{run_folder} holds no global_step_N/huggingface: stage 1 wrote no model")
    return last


def publish_model(run_folder: Path) -> Path:
    """Move the last checkpoint's Hugging Face folder to <run>/model, in one rename.

    Raises:
        FileNotFoundError: no checkpoint holds one.
    """
    model = run_folder / "model"
    os.replace(written_model(run_folder), model)
    return model
