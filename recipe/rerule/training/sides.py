"""Batches with both sides in a stated share: the order of rows of stage 1 and of stage 2."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import Sampler

from recipe.rerule.schema import refuse


class SidesSampler(Sampler[int]):
    """Indices of two sides, mixed evenly, so that every batch has both sides in the same share.

    Of the first n indices of an epoch, floor(n x share) are of the second side. Each side is gone through in
    shuffled order, all of it before any index comes again, on and on over the epochs: the smaller side
    repeats within an epoch, and no row of the larger side waits longer than it must. The order depends on the
    seed and the epoch alone. A `StatefulDataLoader` saves and restores it, as verl's own `RandomSampler`.
    """

    def __init__(
        self,
        first: Sequence[int],
        second: Sequence[int],
        *,
        share: float,
        length: int,
        seed: int,
        shuffle: bool = True,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        """Set up the order of epoch 0.

        Args:
            first, second: the indices of each side; only a side without a share may have none.
            share: of the second side, in [0, 1].
            length: indices in an epoch, over all ranks; each rank gets length // ranks of them. A multiple of
                the batch: those of a last batch that is not full would count as used.
            seed: of the order; shuffle: false leaves the order of each side as it is given.
            rank, ranks: which of the indices are this one's: of each `ranks` neighbours, number `rank`.
        """
        self._sides, self._share, self._length = (tuple(first), tuple(second)), share, length
        self._seed, self._shuffle, self._rank, self._ranks = seed, shuffle, rank, ranks
        self.epoch = 0
        """Of the next pass."""

    def __len__(self) -> int:
        return self._length // self._ranks

    def __iter__(self) -> Iterator[int]:
        passed = _Pass(self, self.epoch)
        self.epoch += 1
        return passed

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`; verl's SFT trainer says so before each."""
        self.epoch = epoch

    def index(self, epoch: int, number: int) -> int:
        """What this rank gets as number `number` of an epoch."""
        place = number * self._ranks + self._rank
        before = math.floor(place * self._share + _ROUNDING)
        is_second = math.floor((place + 1) * self._share + _ROUNDING) > before
        in_epoch = math.floor(self._length * self._share + _ROUNDING)
        counts = (epoch * (self._length - in_epoch) + place - before, epoch * in_epoch + before)
        side, count = self._sides[is_second], counts[is_second]
        if not self._shuffle:
            return side[count % len(side)]
        order = permutation(f"{self._seed} {is_second:d} {count // len(side)}", len(side))
        return side[order[count % len(side)]]


_ROUNDING = 1e-9
"""So that 10 x 0.3 counts as 3 whole rows."""


class _Pass(Iterator[int]):
    """One epoch of a `SidesSampler`; torchdata calls such an iterator stateful."""

    def __init__(self, sampler: SidesSampler, epoch: int) -> None:
        self._sampler, self._epoch, self._yielded = sampler, epoch, 0

    def __next__(self) -> int:
        if self._yielded == len(self._sampler):
            raise StopIteration
        self._yielded += 1
        return self._sampler.index(self._epoch, self._yielded - 1)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "yielded": self._yielded}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where `state` was saved. Raises ValueError where rows were in another kind of order."""
        if "epoch" not in state:
            raise ValueError(
                "the checkpoint's rows were in the order of data.sides=as_given; resume with that"
            )
        self._epoch, self._yielded = state["epoch"], state["yielded"]
        self._sampler.epoch = self._epoch + 1


@functools.lru_cache(maxsize=4)
def permutation(seed: str, size: int) -> list[int]:
    """The numbers below `size`, shuffled."""
    return random.Random(seed).sample(range(size), size)


def stage2_sampler(data: Any, dataset: Any) -> Any:
    """The order of stage 2's prompts by `data.sides`: half of each batch from each side, or verl's own.

    Args:
        data: the section `data` of a checked configuration.
        dataset: verl's data set of the training prompts.

    Raises SettingsError: sides are to be balanced, and one has no row.
    """
    from verl.trainer.ppo.utils import create_rl_sampler

    if data.sides != "balanced":
        return create_rl_sampler(data, dataset)
    types = [column["ground_truth"]["type"] for column in dataset.dataframe["reward_model"]]
    forget, retain = ([n for n, kind in enumerate(types) if kind == side] for side in ("forget", "retain"))
    refuse(
        not (forget and retain),
        "data.sides is balanced, but the rows that data.train_max_samples and data.filter_overlong_prompts "
        "leave are of one side; change these, or set data.sides=as_given",
    )
    batch = data.get("gen_batch_size") or data.train_batch_size
    length = len(types) // batch * batch
    return SidesSampler(forget, retain, share=0.5, length=length, seed=data.seed, shuffle=data.shuffle)
