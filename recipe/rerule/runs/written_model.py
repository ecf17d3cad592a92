"""Where a run has written its model, how that becomes a whole one, and where it ends up."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from omegaconf import DictConfig

from recipe.rerule.runs import adapter, final_weights


def settle(folder: Path, model: DictConfig, dtype: final_weights.DType) -> None:
    """Make the Hugging Face folder that verl has written the one that others read.

    An adapter is merged into the weights and written apart, and the weights get their final dtype. A folder
    without weights stays as it is. To be called before the checkpoint counts.

    Args:
        folder: a checkpoint's `huggingface`.
        model: the section of the configuration that says what was trained.

    Raises:
        adapter.AdapterError: the parts of an adapter do not fit.
        OSError: a file cannot be read or written.
    """
    merge(folder, model)
    final_weights.settle(folder, dtype, model.path)


def merge(folder: Path, model: DictConfig) -> None:
    """The part of `settle` for an adapter. Raises as that."""
    if model.lora_rank > 0 and final_weights.weight_files(folder):
        place = folder.with_name(adapter.FOLDER)
        adapter.separate(folder, place, model.lora_rank, model.lora_alpha, model.path)


def written_models(run_folder: Path) -> list[Path]:
    """The Hugging Face folder of each checkpoint of a run on verl's SFT trainer, the last one's last.

    Raises:
        FileNotFoundError: no checkpoint holds one.
    """
    written = run_folder.glob("global_step_*/huggingface")
    found = sorted(written, key=lambda path: int(path.parent.name.removeprefix("global_step_")))
    if not found:
        raise FileNotFoundError(f"{run_folder} holds no global_step_N/huggingface: stage 1 wrote no model")
    return found


def settle_all(run_folder: Path, model: DictConfig, dtype: final_weights.DType) -> None:
    """`settle` the last checkpoint of a finished run, and `merge` in those before it.

    Raises:
        FileNotFoundError: no checkpoint holds a model.
        adapter.AdapterError, OSError: as `settle`.
    """
    *earlier, last = written_models(run_folder)
    for folder in earlier:
        merge(folder, model)
    settle(last, model, dtype)


def publish_model(run_folder: Path) -> Path:
    """Move the last checkpoint's Hugging Face folder to <run>/model, in one rename.

    Its adapter, where there is one, is moved to <run>/lora_adapter before.

    Raises:
        FileNotFoundError: no checkpoint holds a model.
    """
    written, model = written_models(run_folder)[-1], run_folder / "model"
    if (apart := written.with_name(adapter.FOLDER)).is_dir():
        # One may be there of a run that was killed between the two renames.
        shutil.rmtree(run_folder / adapter.FOLDER, ignore_errors=True)
        os.replace(apart, run_folder / adapter.FOLDER)
    os.replace(written, model)
    return model
