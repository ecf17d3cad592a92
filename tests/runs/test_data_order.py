"""A resumed run sees the prompts in the order of the run that was never stopped, with verl's own code."""

import pickle
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

from recipe.rerule.training.saved_run import restore_epoch_end

BATCH = 4
EPOCHS = 4
Order = list[list[int]]


def config(run: Path, **data: Any) -> DictConfig:
    trainer = {"default_local_dir": str(run), "default_hdfs_dir": None, "resume_mode": "auto"}
    trainer |= {"del_local_ckpt_after_load": False, "total_epochs": EPOCHS, "total_training_steps": None}
    rows = {"train_batch_size": BATCH, "val_batch_size": None, "dataloader_num_workers": 0}
    rows |= {"shuffle": True, "seed": 42} | data
    actor = {"actor": {"checkpoint": {}}}
    return OmegaConf.create({"data": rows, "trainer": trainer, "actor_rollout_ref": actor})


class Run(RayPPOTrainer):
    """verl's loader, saving and resuming, without the training."""

    def __init__(self, settings: DictConfig, rows: int) -> None:
        self.config = settings
        self.use_critic = False
        self.actor_rollout_wg = Mock()
        self._create_dataloader(list(range(rows)), [0], list, None)

    def fit(self, stop: int | None = None) -> Order:
        """The batches from where the run folder is up to `stop`, which is saved; verl's loops over epochs."""
        self.global_steps = 0
        self._load_checkpoint()
        seen = []
        for _ in range(self.global_steps // len(self.train_dataloader), EPOCHS):
            for batch in self.train_dataloader:
                self.global_steps += 1
                seen.append(batch)
                if self.global_steps == stop:
                    self._save_checkpoint()
                    return seen
        return seen

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
            restore_epoch_end(self.train_dataloader, self.global_steps, folder)


def uninterrupted(rows: int) -> Order:
    """By hand: one permutation an epoch from one generator, cut into whole batches."""
    generator = torch.Generator().manual_seed(42)
    order = []
    for _ in range(EPOCHS):
        rows_in_order = torch.randperm(rows, generator=generator).tolist()
        order += [rows_in_order[start : start + BATCH] for start in range(0, rows - BATCH + 1, BATCH)]
    return order


@pytest.mark.parametrize("stops", [*([n] for n in range(1, 3 * EPOCHS)), [3, 4, 6, 9], [1, 3, 5, 6, 7]])
@pytest.mark.parametrize("rows", [12, 15])
def test_order_survives_any_number_of_stops(rows: int, stops: list[int], tmp_path: Path) -> None:
    settings = config(tmp_path)
    seen = [batch for stop in [*stops, None] for batch in Run(settings, rows).fit(stop)]
    assert seen == uninterrupted(rows)


OTHERS = [
    {"seed": 7},
    {"shuffle": False},
    {"gen_batch_size": 4, "train_batch_size": 2},
    {"dataloader_num_workers": 1},  # with which an epoch draws two permutations, and the loader reads ahead
]


@pytest.mark.parametrize("data", OTHERS, ids=lambda data: next(iter(data)))
def test_other_settings_of_the_order(data: dict[str, Any], tmp_path: Path) -> None:
    whole = Run(config(tmp_path / "whole", **data), 13).fit()
    settings = config(tmp_path / "stopped", **data)
    assert [batch for stop in (3, 4, 6, None) for batch in Run(settings, 13).fit(stop)] == whole


def test_state_within_an_epoch_is_refused_where_one_should_have_ended(tmp_path: Path) -> None:
    """A data set that has shrunk or a batch size that has grown since: 6 batches an epoch, then 3."""
    settings = config(tmp_path)
    Run(settings, 24).fit(stop=3)
    settings.data.train_batch_size = 2 * BATCH
    with pytest.raises(ValueError, match=r"data\.pt was saved within an epoch.*train_batch_size"):
        Run(settings, 24).fit()


def test_nothing_in_the_saved_loader_is_executed(tmp_path: Path) -> None:
    run = Run(config(tmp_path), 12)
    torch.save({"an object": tmp_path}, tmp_path / "data.pt")
    with pytest.raises(pickle.UnpicklingError):
        restore_epoch_end(run.train_dataloader, 3, tmp_path)
    restore_epoch_end(run.train_dataloader, 4, tmp_path / "absent")  # within an epoch it is not read
