"""Groups of rows: one row of the method's leading side and its partners, side by side in one micro-batch.

What stands in a group depends on the run's seed, the epoch and the place of the leading row alone, so that a
resumed run sees the same groups, whatever the number of ranks or data workers. Retain rows are drawn without
replacement: in the order of places, which training visits in a random order, each is used once before any is
used twice.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler

from data_prep.contract import Row
from recipe.rerule.training.prompts import turn_ids
from recipe.rerule.training.sides import permutation
from recipe.rerule.unlearning.method import SIDES, Method

Key = tuple[int, int]
"""Epoch, and place of the leading row."""
Tokens = dict[str, Tensor]


class GroupDataset(Dataset[list[Tokens]]):
    """A data set of verl's SFT trainer in which each key gives the rows of one group."""

    def __init__(
        self,
        files: Mapping[str, Sequence[Row]],
        method: Method,
        tokenizer: Any,
        max_length: int,
        seed: int,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        """Check that every group can be made.

        Args:
            files: side to rows as of `read_sft_rows`, those of `method.data` at least.
            tokenizer: of transformers.
            max_length: tokens after which a row is cut off.
            seed: of the draws.
            template: further arguments of the chat template.

        Raises ValueError: an alternate row is missing, or there are too few answers to draw from.
        """
        self._files, self._method, self._seed = files, method, seed
        self._tokenizer, self._max_length, self._template = tokenizer, max_length, dict(template or {})
        self._drawn = method.alternate_answers != "file"
        drawn_leads = self._drawn and method.leading == "alternate"
        self._prompts = files["forget" if drawn_leads else method.leading]
        self._alternate = self._partners_by_index()
        self._pool = self._answers() if self._drawn and "alternate" in method.layout else []
        self._encoded: dict[tuple[str, int, str], Tokens] = {}

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitems__(self, keys: Sequence[Key]) -> list[Tokens]:
        """The rows of the groups, one group after the other, each in the order of `method.layout`."""
        return [row for key in keys for row in self.group(*key)]

    def group(self, epoch: int, place: int) -> list[Tokens]:
        """`input_ids`, `position_ids`, `loss_mask` [tokens] and `side` [1] of each row of a group.

        The mask is 1 on the tokens of answers, but never on a row's first token, which nothing predicts.
        """
        rows = {"forget": [("forget", place, "")]} if "forget" in self._method.layout else {}
        if "alternate" in self._method.layout:
            rows["alternate"] = self._alternate_rows(epoch, place)
        if "retain" in self._method.layout:
            rows["retain"] = [("retain", number, "") for number in self._retain_places(epoch, place)]
        return [
            {**self._tokens(*row), "side": torch.tensor([SIDES.index(side)])}
            for side, found in rows.items()
            for row in found
        ]

    def check_answers(self) -> None:
        """Refuse rows of which nothing would be learnt, and prompts without room for an answer that is drawn.

        Raises ValueError.
        """
        for side in self._method.data:
            for place in range(len(self._files[side])):
                if not self._tokens(side, place, "")["loss_mask"].any():
                    raise ValueError(
                        f"data.{side}: row {place} has no token of an answer among its first "
                        f"{self._max_length}; raise data.max_length or shorten its prompt"
                    )

    def check_drawn(self) -> None:
        """Refuse rows that would be cut if they drew the longest answer of another row. Raises ValueError."""
        if not self._pool:
            return
        source = self._method.alternate_answers
        lengths = {_answer(row): len(self._turns(row)[-1]) for row in self._files[source]}
        longest = heapq.nlargest(2, lengths, key=lengths.__getitem__)
        for place, row in enumerate(self._prompts):
            asked = sum(map(len, self._turns(row)[:-1]))
            needed = asked + lengths[longest[longest[0] == _answer(row)]]
            if needed > self._max_length:
                raise ValueError(
                    f"data.max_length is {self._max_length}, but row {place} of data.forget has up to "
                    f"{needed} tokens with an answer drawn from data.{source}; raise it, or set "
                    "data.truncation=right"
                )

    def longest(self) -> int:
        """The most tokens that a group may have."""
        # Drawn answers are tokenised apart from their prompts, so that theirs is a bound.
        longest = dict.fromkeys(["alternate"] if self._drawn else [], self._max_length)
        for side in set(self._method.layout) - longest.keys():
            rows = range(len(self._files[side]))
            longest[side] = max(len(self._tokens(side, place, "")["input_ids"]) for place in rows)
        return sum(longest[side] for side in self._method.layout)

    def _partners_by_index(self) -> list[int]:
        """The place of each leading row's alternate row; empty where answers are drawn or not needed."""
        if self._drawn or "alternate" not in self._method.layout:
            return []
        if self._method.leading == "alternate":
            return list(range(len(self._prompts)))
        others = self._files["alternate"]
        places = {_index(row): place for place, row in enumerate(others)}
        for number, row in enumerate(self._prompts):
            if _index(row) not in places:
                raise ValueError(
                    f"data.alternate has no row with extra_info.index {_index(row)}, which row {number} of "
                    "data.forget has; make both files from the same rows"
                )
            place = places[_index(row)]
            if others[place]["messages"][:-1] != row["messages"][:-1]:
                raise ValueError(
                    f"row {place} of data.alternate has another prompt than row {number} of data.forget, "
                    f"though both have extra_info.index {_index(row)}; make both files from the same rows"
                )
        return [places[_index(row)] for row in self._prompts]

    def _answers(self) -> list[str]:
        """The distinct answers that are drawn from, sorted."""
        source = self._method.alternate_answers
        pool = sorted({_answer(row) for row in self._files[source]})
        if len(pool) <= self._method.alternate_rows:
            raise ValueError(
                f"data.{source} holds {len(pool)} different answers, too few to draw "
                f"method.alternate_rows={self._method.alternate_rows} other answers for each row"
            )
        return pool

    def _alternate_rows(self, epoch: int, place: int) -> list[tuple[str, int, str]]:
        if not self._drawn:
            return [("alternate", self._alternate[place], "")]
        own, count = _answer(self._prompts[place]), self._method.alternate_rows
        drawn = random.Random(f"answers {self._seed} {epoch} {place}").sample(self._pool, count + 1)
        return [("forget", place, answer) for answer in [a for a in drawn if a != own][:count]]

    def _retain_places(self, epoch: int, place: int) -> list[int]:
        rows, count = len(self._files["retain"]), self._method.retain_rows
        first = (epoch * len(self) + place) * count
        numbers = [divmod(n, rows) for n in range(first, first + count)]
        return [permutation(f"retain {self._seed} {turn}", rows)[number] for turn, number in numbers]

    def _tokens(self, side: str, place: int, answer: str) -> Tokens:
        """The tokens of a row of a file, with another answer where one is given."""
        key = (side, place, answer)
        if key not in self._encoded:
            row = self._files[side][place]
            if answer:
                *asked, answered = row["messages"]
                row = {**row, "messages": [*asked, {**answered, "content": answer}]}
            ids, mask = list[int](), list[int]()
            for message, turn in zip(row["messages"], self._turns(row), strict=True):
                ids += turn
                mask += [int(message["role"] == "assistant")] * len(turn)
            count = min(len(ids), self._max_length)
            self._encoded[key] = {
                "input_ids": torch.tensor(ids[:count]),
                "position_ids": torch.arange(count),
                "loss_mask": torch.tensor([0, *mask[1:count]]),
            }
        return self._encoded[key]

    def _turns(self, row: Row) -> list[list[int]]:
        """The tokens of each message."""
        messages, raw = row["messages"], row["extra_info"]["raw"]
        turns = range(len(messages))
        return [turn_ids(self._tokenizer, messages, turn, raw, **self._template) for turn in turns]


class GroupSampler(DistributedSampler[Any]):
    """torch's distributed sampler, whose places come with the epoch that `set_epoch` was given last."""

    def __iter__(self) -> Iterator[Key]:
        return ((self.epoch, place) for place in super().__iter__())


def _index(row: Row) -> int:
    return int(row["extra_info"]["index"])


def _answer(row: Row) -> str:
    return str(row["messages"][-1]["content"])
