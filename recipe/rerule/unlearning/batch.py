"""A micro-batch of groups: which row and side each token belongs to, and sums over answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from recipe.rerule.unlearning.method import SIDES


@dataclass(frozen=True)
class Answers:
    """The answers of some rows, in their order; each [rows]."""

    log_probs: Tensor
    """Summed over the answer's tokens."""
    probabilities: Tensor
    """Averaged over them."""
    lengths: Tensor
    """Their number."""


class MicroBatch:
    """The rows of verl's micro-batch, packed one after another.

    Position t of a row holds what the model says after token t, so that masks are shifted by one. Rows begin
    with a masked token, so that the last position of a row is of no answer.
    """

    def __init__(self, data: TensorDict) -> None:
        lengths = data["input_ids"].offsets().diff()
        self._sides = data["side"].values()
        self._row = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
        self._answer = data["loss_mask"].values().roll(-1).bool()
        self.next_tokens: Tensor = data["input_ids"].values().roll(-1)
        """The token that follows each position: [positions]. After the last one of a row, one of another."""

    def rows(self, *sides: str) -> Tensor:
        """Numbers of the rows of these sides, ascending: [rows], int64."""
        wanted = torch.tensor([SIDES.index(side) for side in sides], device=self._sides.device)
        return torch.isin(self._sides, wanted).nonzero().flatten()

    def positions(self, side: str, answers_alone: bool) -> Tensor:
        """Places of a side's positions among all positions, ascending: [positions], int64."""
        found = torch.isin(self._row, self.rows(side))
        return (found & self._answer if answers_alone else found).nonzero().flatten()

    def answers(self, log_probs: Tensor, side: str) -> Answers:
        """The answers of a side; `log_probs` [positions] is of all positions."""
        rows = self.rows(side)
        places = self.positions(side, answers_alone=True)
        number = torch.searchsorted(rows, self._row[places])
        of_answers = log_probs[places]
        zeros = of_answers.new_zeros(len(rows))
        lengths = zeros.index_add(0, number, torch.ones_like(of_answers))
        return Answers(
            zeros.index_add(0, number, of_answers),
            zeros.index_add(0, number, of_answers.exp()) / lengths,
            lengths,
        )

    def scattered(self, values: Tensor, rows: Tensor) -> Tensor:
        """Values at all positions of some rows, row by row, put where they stand; 0 elsewhere."""
        places = torch.isin(self._row, rows).nonzero().flatten()
        return values.new_zeros(len(self._row)).index_copy(0, places, values)


def counts(data: TensorDict, retain_positions: str) -> dict[str, int]:
    """What the terms of a batch are averaged over.

    Returns:
        Of each side `tokens_SIDE`, the tokens of its answers; and `retain_positions`.
    """
    micro = MicroBatch(data)
    found = {f"tokens_{side}": len(micro.positions(side, answers_alone=True)) for side in SIDES}
    found["retain_positions"] = len(micro.positions("retain", retain_positions == "answer"))
    return found
