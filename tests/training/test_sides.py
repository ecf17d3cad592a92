"""Both sides in every batch: shares, turns and order, by hand and over restarts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.utils import create_rl_sampler
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from recipe.rerule.runs.checkpoints import CheckpointError
from recipe.rerule.runs.data_order import LOADER_FILE, restore_epoch_end
from recipe.rerule.training.sides import SidesSampler, stage2_sampler
from recipe.rerule.training.trainer_v1 import ReRULETrainerV1

FORGET, RETAIN = range(24), range(24, 99)
BATCH = 8


def sampler(**settings: Any) -> SidesSampler:
    return SidesSampler(FORGET, RETAIN, **{"share": 0.5, "length": 99, "seed": 42, **settings})


def batches(order: list[int], size: int = BATCH) -> list[list[int]]:
    return [order[start : start + size] for start in range(0, len(order) - size + 1, size)]


def retained(batch: list[int]) -> int:
    return sum(index in RETAIN for index in batch)


@pytest.mark.parametrize(
    ("share", "size", "counts"),
    [(0.5, 8, {4}), (0.25, 8, {2}), (0.75, 8, {6}), (0.3, 10, {3}), (0.5, 7, {3, 4}), (0.0, 8, {0})],
)
def test_every_batch_has_the_share(share: float, size: int, counts: set[int]) -> None:
    made = sampler(share=share, length=40 * size)
    for _ in range(3):
        assert {retained(batch) for batch in batches(list(made), size)} == counts


def test_each_side_is_gone_through_before_any_row_comes_again() -> None:
    made = sampler(length=96)
    for epoch in range(1, 8):
        order = [index for number in range(epoch) for index in _epoch(made, number)]
        for side in (FORGET, RETAIN):
            uses = Counter({index: 0 for index in side})
            uses.update(index for index in order if index in side)
            assert sum(uses.values()) == 48 * epoch
            assert max(uses.values()) - min(uses.values()) <= 1


def _epoch(made: SidesSampler, number: int) -> list[int]:
    made.set_epoch(number)
    return list(made)


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    assert list(sampler()) == list(sampler())
    assert list(sampler()) != list(sampler(seed=43))
    made = sampler()
    first, second = list(made), list(made)
    assert first != second
    assert _epoch(sampler(), 1) == second
    assert list(sampler(shuffle=False))[:6] == [0, 24, 1, 25, 2, 26]
    whole, parts = list(sampler(length=96)), [list(sampler(length=96, rank=n, ranks=2)) for n in range(2)]
    assert [index for pair in zip(*parts, strict=True) for index in pair] == whole  # ranks share it


class Rows:
    """verl's data set, as far as the sampler reads it."""

    def __init__(self, types: list[str]) -> None:
        self.dataframe = {"reward_model": [{"ground_truth": {"type": kind}} for kind in types]}

    def __len__(self) -> int:
        return len(self.dataframe["reward_model"])

    def __getitem__(self, index: int) -> int:
        return index


def loader(sides: str, workers: int = 0) -> StatefulDataLoader[int]:
    rows = Rows(["retain", "forget", "retain", "retain"] * 6)
    data = OmegaConf.create({"sides": sides, "shuffle": True, "seed": 1})
    made = stage2_sampler(data, rows)
    return StatefulDataLoader(rows, 4, sampler=made, num_workers=workers, collate_fn=list, drop_last=True)


def run(made: StatefulDataLoader[int], step: int, steps: int) -> list[list[int]]:
    """The batches of steps `step` + 1 to `steps`, as verl's loops over epochs give them."""
    seen: list[list[int]] = []
    while True:
        for batch in made:
            seen.append(batch)
            if step + len(seen) == steps:
                return seen


@pytest.mark.parametrize(("step", "workers"), [(1, 0), (5, 0), (6, 0), (7, 0), (12, 0), (6, 1)])
def test_a_resumed_run_sees_the_same_batches(step: int, workers: int, tmp_path: Path) -> None:
    """24 rows make 6 batches an epoch, so that steps 6 and 12 end one."""
    whole = run(loader("balanced", workers), 0, 20)
    assert all(sum(index % 4 == 1 for index in batch) == 2 for batch in whole)
    stopped = loader("balanced", workers)
    assert run(stopped, 0, step) == whole[:step]
    torch.save(stopped.state_dict(), tmp_path / LOADER_FILE)
    resumed = loader("balanced", workers)
    resumed.load_state_dict(torch.load(tmp_path / LOADER_FILE, weights_only=True))
    restore_epoch_end(resumed, step, tmp_path)
    assert run(resumed, step, 20) == whole[step:]


def test_a_checkpoint_of_the_other_order_is_refused() -> None:
    stopped = loader("as_given")
    run(stopped, 0, 2)
    resumed = loader("balanced")
    resumed.load_state_dict(stopped.state_dict())
    with pytest.raises(CheckpointError, match="resume with that"):
        next(iter(resumed))
    data = OmegaConf.create({"sides": "as_given", "shuffle": True, "seed": 3})
    rows = Rows(["retain", "forget"] * 5)  # as_given is verl's own order
    assert list(stage2_sampler(data, rows)) == list(create_rl_sampler(data, rows))


def test_v1_takes_the_order_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def verls(trainer: Any) -> None:
        trainer.train_dataset = Rows(["retain", "forget", "retain", "retain"] * 6)
        trainer.train_dataloader = StatefulDataLoader(
            trainer.train_dataset, 4, collate_fn=list, drop_last=True
        )

    monkeypatch.setattr(PPOTrainerSync, "_init_dataloader", verls)
    trainer = object.__new__(ReRULETrainerV1)
    trainer.config = OmegaConf.create({"data": {"sides": "balanced", "shuffle": True, "seed": 1}})
    trainer._init_dataloader()
    assert run(trainer.train_dataloader, 0, 12) == run(loader("balanced"), 0, 12)
