"""A method's loss as verl's engines call it: for each micro-batch, so that all of them add up to the batch's.

Each term is the mean of its micro-batch, times the share of the whole batch (all micro-batches of all ranks)
that the micro-batch is. So the sum does not depend on how the batch is split.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from tensordict import TensorDict
from torch import Tensor

from recipe.rerule.unlearning import losses
from recipe.rerule.unlearning.batch import Answers, MicroBatch
from recipe.rerule.unlearning.method import Method


class StartModel(Protocol):
    """The frozen model that training starts from."""

    def log_probs(self, data: TensorDict, rows: Tensor) -> Tensor:
        """Log-probs of the next tokens at all positions of some rows of a micro-batch, row by row."""

    def logits(self, data: TensorDict, rows: Tensor) -> Tensor:
        """Logits of those positions: [positions, V]."""


class MethodLoss:
    """Called by verl's engine, once with the logits where the method has a KL, then with the log-probs."""

    def __init__(self, method: Method, start: StartModel | None) -> None:
        """`start` may be None where `method.referenced` is empty."""
        self._method, self._start = method, start
        self._weights = _weights(method)

    def __call__(
        self,
        model_output: dict[str, Tensor] | None = None,
        data: TensorDict | None = None,
        dp_group: Any = None,
        student_logits: Tensor | None = None,
    ) -> Any:
        """The KL of each position by name, or the loss and its terms' parts of the batch's terms."""
        assert data is not None
        if student_logits is not None:
            return {"kl": self._kl(student_logits[0], data)[None]}
        assert model_output is not None
        terms = self._terms(model_output, data)
        parts = {side: term * data["dp_size"] for side, term in terms.items()}
        loss = torch.stack([self._weights[side] * part for side, part in parts.items()]).sum()
        return loss, {f"loss/{side}": part.item() for side, part in parts.items()}

    def _terms(self, model_output: dict[str, Tensor], data: TensorDict) -> dict[str, Tensor]:
        micro = MicroBatch(data)
        log_probs = model_output["log_probs"].values()
        terms = {}
        if self._method.forget != "none":
            terms["forget"] = self._forget(micro, log_probs, data)
        if self._method.alternate != "none":
            terms["alternate"] = _nll(micro.answers(log_probs, "alternate"), data["tokens_alternate"])
        if self._method.retain == "nll":
            terms["retain"] = _nll(micro.answers(log_probs, "retain"), data["tokens_retain"])
        if self._method.retain == "kl":
            terms["retain"] = model_output["kl"].values().sum() / data["kl_positions"]
        return terms

    def _forget(self, micro: MicroBatch, log_probs: Tensor, data: TensorDict) -> Tensor:
        gold = micro.answers(log_probs, "forget")
        if self._method.forget == "ga":
            return -_nll(gold, data["tokens_forget"])
        share = len(gold.lengths) / data["groups"]
        return self._over_rows(micro, log_probs, data, gold) * share

    def _over_rows(self, micro: MicroBatch, log_probs: Tensor, data: TensorDict, gold: Answers) -> Tensor:
        """A term that is a mean over rows, of this micro-batch."""
        method, beta = self._method, self._method.beta or 0.0
        if method.forget == "simnpo":
            return losses.simnpo(gold.log_probs, gold.lengths, beta, method.gamma)
        if method.forget == "npo":
            return losses.npo(gold.log_probs, self._reference(micro, data)["forget"].log_probs, beta)
        other = micro.answers(log_probs, "alternate")
        if method.forget == "flat":
            return losses.flat(other.probabilities, gold.probabilities, method.divergence)
        reference = self._reference(micro, data)
        return losses.dpo(
            other.log_probs,
            reference["alternate"].log_probs,
            gold.log_probs,
            reference["forget"].log_probs,
            beta,
            method.dpo_scale,
        )

    def _reference(self, micro: MicroBatch, data: TensorDict) -> dict[str, Answers]:
        """The answers of the sides that the forget term compares with the start model's."""
        assert self._start is not None
        sides = tuple(side for side in self._method.referenced if side != "retain")
        rows = micro.rows(*sides)
        of_all = micro.scattered(self._start.log_probs(data, rows), rows)
        return {side: micro.answers(of_all, side) for side in sides}

    def _kl(self, logits: Tensor, data: TensorDict) -> Tensor:
        """KL from the start model to the model at each position that counts, 0 elsewhere: [positions]."""
        assert self._start is not None
        micro = MicroBatch(data)
        rows = micro.rows("retain")
        whole = micro.positions("retain", answers_alone=False)
        counted = micro.positions("retain", self._method.kl_positions == "answer")
        reference = self._start.logits(data, rows)[torch.searchsorted(whole, counted)]
        found = losses.kl_by_position(_wide(reference), _wide(logits[counted]))
        return found.new_zeros(len(logits)).index_copy(0, counted, found)


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
