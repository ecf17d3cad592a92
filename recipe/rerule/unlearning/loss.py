"""A method's loss as verl's engines call it: for each micro-batch, so that all of them add up to the batch's.

Each term is the mean of its micro-batch, times the share of the whole batch (all micro-batches of all ranks)
that the micro-batch is. So the sum does not depend on how the batch is split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from tensordict import TensorDict
from torch import Tensor

from recipe.rerule.unlearning import hidden, losses
from recipe.rerule.unlearning.method import SIDES, Method


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
        return _placed(values, torch.isin(self._row, rows).nonzero().flatten(), len(self._row))


def counts(data: TensorDict, retain_positions: str) -> dict[str, int]:
    """What the terms of a batch are averaged over.

    Returns:
        Of each side `tokens_SIDE`, the tokens of its answers; and `retain_positions`.
    """
    micro = MicroBatch(data)
    found = {f"tokens_{side}": len(micro.positions(side, answers_alone=True)) for side in SIDES}
    found["retain_positions"] = len(micro.positions("retain", retain_positions == "answer"))
    return found


class Frozen(Protocol):
    """A model that is not trained: the start model, or a reinforced one."""

    def log_probs(self, data: TensorDict, rows: Tensor) -> Tensor:
        """Log-probs of the next tokens at all positions of some rows of a micro-batch, row by row."""

    def logits(self, data: TensorDict, rows: Tensor) -> Tensor:
        """Logits of those positions: [positions, V]."""

    def hidden(self, data: TensorDict, rows: Tensor) -> Tensor:
        """The output of `method.layer` at those positions: [positions, H]."""


class MethodLoss:
    """Called by verl's engine, once with the logits where the method needs them, then with the log-probs."""

    def __init__(
        self, method: Method, start: Frozen | None, reinforced: Frozen | None = None, seed: int = 0
    ) -> None:
        """A model may be None where `method.referenced`, or `method.reinforced`, is empty.

        `seed`: of the control vector's direction.
        """
        self._method, self._start, self._reinforced = method, start, reinforced
        self._seed = seed
        forget, retain = method.forget_weight, method.retain_weight
        if method.smoothing is not None:
            forget, retain = losses.smoothing_weights(method.smoothing, method.retain_rows)
        self.weights = {"forget": forget, "retain": retain, "alternate": method.alternate_weight}

    def __call__(
        self,
        model_output: dict[str, Tensor] | None = None,
        data: TensorDict | None = None,
        dp_group: Any = None,
        student_logits: Tensor | None = None,
    ) -> Any:
        """Of logits, terms at each position by name; else the loss, and its terms' parts of the batch's."""
        assert data is not None
        if student_logits is not None:
            return {term: values[None] for term, values in self._of_logits(student_logits[0], data).items()}
        assert model_output is not None
        terms = self._terms(model_output, data)
        parts = {side: term * data["dp_size"] for side, term in terms.items()}
        loss = torch.stack([self.weights[side] * part for side, part in parts.items()]).sum()
        return loss, {f"loss/{side}": part.item() for side, part in parts.items()}

    def _terms(self, model_output: dict[str, Tensor], data: TensorDict) -> dict[str, Tensor]:
        micro = MicroBatch(data)
        log_probs = model_output["log_probs"].values()
        terms = {}
        if "logits" in self._method.forget_term.reads:
            terms["forget"] = model_output["forget"].values().sum() / data["tokens_forget"]
        elif "hidden" in self._method.forget_term.reads:
            states = _wide(model_output["hidden"].values()[micro.positions("forget", answers_alone=True)])
            direction = hidden.direction(states.shape[-1], self._seed).to(states)
            found = self._forget({"hidden": states, "direction": direction})
            terms["forget"] = found.sum() / data["tokens_forget"]
        elif self._method.forget != "none":
            terms["forget"] = self._of_answers(micro, log_probs, data)
        if self._method.alternate != "none":
            terms["alternate"] = _nll(micro.answers(log_probs, "alternate"), data["tokens_alternate"])
        if self._method.retain == "nll":
            terms["retain"] = _nll(micro.answers(log_probs, "retain"), data["tokens_retain"])
        if self._method.retain == "kl":
            terms["retain"] = model_output["kl"].values().sum() / data["retain_positions"]
        if self._method.retain == "hidden":
            counted = self._retain_positions(micro)
            found = losses.distance_by_position(
                _wide(model_output["hidden"].values()[counted]),
                _of_frozen(self._start, "hidden", data, "retain", counted),
            )
            terms["retain"] = found.sum() / data["retain_positions"]
        return terms

    def _of_answers(self, micro: MicroBatch, log_probs: Tensor, data: TensorDict) -> Tensor:
        """This micro-batch's part of a forget term that needs no logits."""
        gold, reference = micro.answers(log_probs, "forget"), self._reference(micro, data)
        read = {"log_probs": log_probs[micro.positions("forget", answers_alone=True)]}
        for side, before in (("forget", ""), ("alternate", "alternate_")):
            answers = micro.answers(log_probs, side)
            read[f"{before}sums"], read[f"{before}lengths"] = answers.log_probs, answers.lengths
            read[f"{before}probabilities"] = answers.probabilities
            if side in reference:
                read[f"{before}start_sums"] = reference[side].log_probs
        if self._method.forget_term.mean_over == "tokens":
            return self._forget(read).mean() * (gold.lengths.sum() / data["tokens_forget"])
        return self._forget(read) * (len(gold.lengths) / data["groups"])

    def _reference(self, micro: MicroBatch, data: TensorDict) -> dict[str, Answers]:
        """The answers of the sides that the forget term compares with the start model's."""
        sides = tuple(side for side in self._method.referenced if side != "retain")
        if not sides:
            return {}
        assert self._start is not None
        rows = micro.rows(*sides)
        of_all = micro.scattered(self._start.log_probs(data, rows), rows)
        return {side: micro.answers(of_all, side) for side in sides}

    def _of_logits(self, logits: Tensor, data: TensorDict) -> dict[str, Tensor]:
        """The terms that logits are needed for, at each position that counts, 0 elsewhere: [positions]."""
        micro, found = MicroBatch(data), {}
        reads = self._method.forget_term.reads
        if "logits" in reads:
            counted = micro.positions("forget", answers_alone=True)
            read = {"logits": _wide(logits[counted]), "tokens": micro.next_tokens[counted]}
            for name, model in (("start_logits", self._start), ("reinforced_logits", self._reinforced)):
                if name in reads:
                    read[name] = _of_frozen(model, "logits", data, "forget", counted)
            found["forget"] = _placed(self._forget(read), counted, len(logits))
        if self._method.retain == "kl":
            counted = self._retain_positions(micro)
            reference = _of_frozen(self._start, "logits", data, "retain", counted)
            found["kl"] = _placed(
                losses.kl_by_position(reference, _wide(logits[counted])), counted, len(logits)
            )
        return found

    def _retain_positions(self, micro: MicroBatch) -> Tensor:
        """Those that a comparison with the start model counts."""
        return micro.positions("retain", self._method.retain_positions == "answer")

    def _forget(self, read: dict[str, Tensor]) -> Tensor:
        """The function of the forget term, of what `method.FORGET` says."""
        term, function = self._method.forget_term, getattr(losses, self._method.forget)
        settings = [getattr(self._method, name) for name in term.settings]
        value: Tensor = function(*(read[name] for name in term.reads), *settings)
        return value


def _of_frozen(model: Frozen | None, what: str, data: TensorDict, side: str, counted: Tensor) -> Tensor:
    """Logits, or hidden states, of a frozen model at some positions of a side: [counted, V or H]."""
    assert model is not None
    micro = MicroBatch(data)
    whole = micro.positions(side, answers_alone=False)
    found: Tensor = getattr(model, what)(data, micro.rows(side))
    return _wide(found[torch.searchsorted(whole, counted)])


def _placed(values: Tensor, places: Tensor, length: int) -> Tensor:
    return values.new_zeros(length).index_copy(0, places, values)


def _nll(answers: Answers, batch_tokens: int) -> Tensor:
    """This micro-batch's part of the mean NLL of a side's tokens in the whole batch."""
    return losses.nll(answers.log_probs, answers.lengths) * (answers.lengths.sum() / batch_tokens)


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
