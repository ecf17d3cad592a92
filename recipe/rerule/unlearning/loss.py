"""A method's loss as verl's engines call it: for each micro-batch, so that all of them add up to the batch's.

Each term is the mean of its micro-batch, times the share of the whole batch (all micro-batches of all ranks)
that the micro-batch is. So the sum does not depend on how the batch is split.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from tensordict import TensorDict
from torch import Tensor

from recipe.rerule.unlearning import hidden, losses
from recipe.rerule.unlearning.batch import Answers, MicroBatch
from recipe.rerule.unlearning.method import Method


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

        Args:
            seed: of the control vector's direction.
        """
        self._method, self._start, self._reinforced = method, start, reinforced
        self._seed = seed
        self.weights = _weights(method)

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
            found["kl"] = _placed(self._kl(logits, data, counted), counted, len(logits))
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

    def _kl(self, logits: Tensor, data: TensorDict, counted: Tensor) -> Tensor:
        """KL from the start model to the model, at some positions of the retain rows."""
        reference = _of_frozen(self._start, "logits", data, "retain", counted)
        return losses.kl_by_position(reference, _wide(logits[counted]))


def _of_frozen(model: Frozen | None, what: str, data: TensorDict, side: str, counted: Tensor) -> Tensor:
    """Logits, or hidden states, of a frozen model at some positions of a side: [counted, V or H]."""
    assert model is not None
    micro = MicroBatch(data)
    whole = micro.positions(side, answers_alone=False)
    found: Tensor = getattr(model, what)(data, micro.rows(side))
    return _wide(found[torch.searchsorted(whole, counted)])


def _placed(values: Tensor, places: Tensor, length: int) -> Tensor:
    return values.new_zeros(length).index_copy(0, places, values)


def _weights(method: Method) -> dict[str, float]:
    forget, retain = method.forget_weight, method.retain_weight
    if method.smoothing is not None:
        forget, retain = losses.smoothing_weights(method.smoothing, method.retain_rows)
    return {"forget": forget, "retain": retain, "alternate": method.alternate_weight}


def _nll(answers: Answers, batch_tokens: int) -> Tensor:
    """This micro-batch's part of the mean NLL of a side's tokens in the whole batch."""
    return losses.nll(answers.log_probs, answers.lengths) * (answers.lengths.sum() / batch_tokens)


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
