"""Both sides in every batch: shares, turns and order, by hand and over restarts."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.utils import create_rl_sampler

from recipe.rerule.schema import SettingsError
from recipe.rerule.training.saved_run import LOADER_FILE, restore_epoch_end
from recipe.rerule.training.sides import SidesSampler, stage2_sampler

FORGET, RETAIN = range(24), range(24, 99)


def sampler(**settings: Any) -> SidesSampler:
    return SidesSampler(FORGET, RETAIN, **{"share": 0.5, "length": 96, "seed": 42, **settings})


@pytest.mark.parametrize(
    ("share", "size", "counts"),
    [(0.5, 8, {4}), (0.25, 8, {2}), (0.75, 8, {6}), (0.3, 10, {3}), (0.5, 7, {3, 4}), (0.0, 8, {0})],
)
def test_every_batch_has_the_share(share: float, size: int, counts: set[int]) -> None:
    made = sampler(share=share, length=40 * size)
    for _ in range(3):
        retained = [index in RETAIN for index in made]
        assert {sum(retained[start : start + size]) for start in range(0, 40 * size, size)} == counts


def test_each_side_is_gone_through_before_any_row_comes_again() -> None:
    made, uses = sampler(), Counter({index: 0 for index in (*FORGET, *RETAIN)})
    for epoch in range(1, 8):
        uses.update(made)
        for side in (FORGET, RETAIN):
            of_side = [uses[index] for index in side]
            assert sum(of_side) == 48 * epoch
            assert max(of_side) - min(of_side) <= 1


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    made, again = sampler(), sampler()
    first, second = list(made), list(made)
    assert first == list(sampler()) != list(sampler(seed=43))
    again.set_epoch(1)
    assert list(again) == second != first
    assert list(sampler(shuffle=False))[:6] == [0, 24, 1, 25, 2, 26]
    parts = [list(sampler(rank=rank, ranks=2)) for rank in range(2)]
    assert [index for pair in zip(*parts, strict=True) for index in pair] == first  # ranks share it


class Rows:
    """verl's data set, as far as the sampler reads it: every fourth row, from the second, is of forget."""

    types = ("retain", "forget", "retain", "retain") * 6
    dataframe = {"reward_model": [{"ground_truth": {"type": kind}} for kind in types]}  # noqa: RUF012

    def __len__(self) -> int:
        return len(self.types)

    def __getitem__(self, index: int) -> int:
        return index


def data(sides: str, seed: int = 1, batch: int = 4) -> Any:
    return OmegaConf.create({"sides": sides, "shuffle": True, "seed": seed, "train_batch_size": batch})


def loader(sides: str, workers: int = 0) -> StatefulDataLoader[int]:
    made = stage2_sampler(data(sides), Rows())
    return StatefulDataLoader(Rows(), 4, sampler=made, num_workers=workers, collate_fn=list, drop_last=True)


def test_rows_that_do_not_fill_a_batch_count_as_not_used() -> None:
    """24 rows in batches of 10: 20 a pass, so that 6 passes use each of 6 forget rows 10 times."""
    made = stage2_sampler(data("balanced", batch=10), Rows())
    batches = StatefulDataLoader(Rows(), 10, sampler=made, collate_fn=list, drop_last=True)
    uses = Counter(index for _ in range(6) for batch in batches for index in batch)
    assert {uses[index] for index in range(24) if index % 4 == 1} == {10}
    assert {uses[index] for index in range(24) if index % 4 != 1} == {3, 4}


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
    with pytest.raises(ValueError, match="resume with that"):
        next(iter(resumed))


def test_rows_of_one_side_cannot_be_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows of a file that is sorted by side."""
    monkeypatch.setattr(Rows, "dataframe", {"reward_model": Rows.dataframe["reward_model"][:1]})
    with pytest.raises(SettingsError, match=r"data.sides is balanced, but .* data.train_max_samples"):
        stage2_sampler(data("balanced"), Rows())


def test_as_given_is_verls_own_order() -> None:
    settings = data("as_given", seed=3)
    assert list(stage2_sampler(settings, Rows())) == list(create_rl_sampler(settings, Rows()))
