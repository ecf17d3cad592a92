"""The order of the training prompts over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from recipe.rerule.runs.checkpoints import CheckpointError

if TYPE_CHECKING:
    from torchdata.stateful_dataloader import StatefulDataLoader

LOADER_FILE = "data.pt"


def restore_epoch_end(loader: StatefulDataLoader[Any], step: int, checkpoint: str | Path) -> None:
    """Where `step` ended an epoch, let the next epoch have the order the uninterrupted run would see.

    verl restores its loader within an epoch, which is exact, but not at the end of one, so that its next
    epoch repeats the first one's order. Here the saved loader is restored and run to its end, where it has no
    batch left to give. That leaves the sampler's generator as it was, however often an epoch draws from it
    (once, or twice with loader workers). To be called after verl's own restoring; within an epoch it does
    nothing.

    Args:
        loader: the training loader, before its first batch; `len(loader)` is the batches of an epoch.
        step: training steps done, one batch each.
        checkpoint: the folder of that step, with verl's data.pt in it.

    Raises:
        CheckpointError: the saved loader is not at the end of an epoch of this loader.
        OSError: data.pt cannot be read.
    """
    if step % len(loader):
        return
    path = Path(checkpoint) / LOADER_FILE
    loader.load_state_dict(torch.load(path, weights_only=True))
    for _ in loader:
        raise CheckpointError(
            f"{path} was saved within an epoch, but with the {len(loader)} batches an epoch has now, step "
            f"{step} ends one; resume with the data.train_files and data.train_batch_size of the checkpoint"
        )
