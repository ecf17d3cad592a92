"""A method's training in one process: transformers and AdamW, without Ray, verl or vLLM.

The loss is `recipe.rerule.unlearning.loss.MethodLoss` itself, and the rows are those of `GroupDataset`. What
stands here is what verl's engine does around them: forward passes, and one optimiser step a batch.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW

from data_prep.contract import Row
from recipe.rerule.unlearning import batch
from recipe.rerule.unlearning.loss import MethodLoss
from recipe.rerule.unlearning.method import Method
from recipe.rerule.unlearning.rows import GroupDataset, Key, Tokens

MAX_LENGTH = 128
"""Tokens after which a row is cut off, as in `experiment=tiny`; the world's rows have fewer than 70."""


@dataclass(frozen=True)
class Schedule:
    """How long and in which steps a method trains; defaults are `experiment=tiny`'s.

    Attributes:
        epochs: passes over the leading rows (`Method.leading`).
        batch_size: groups of rows a step.
    """

    epochs: int = 5
    batch_size: int = 8
    weight_decay: float = 0.0
    grad_clip: float = 1.0


@dataclass(frozen=True)
class Spent:
    """What a training cost.

    Attributes:
        trained: tokens that passed with a gradient, prompts included.
        compute: tokens through a model, a forward pass as 1 and a backward pass as 2.
        seconds: of the processor, so that other programs on the machine do not count.
        generated: tokens that the model wrote, without prompts.
    """

    trained: int = 0
    compute: float = 0.0
    seconds: float = 0.0
    generated: int = 0

    def __add__(self, other: Spent) -> Spent:
        """What two trainings cost together."""
        return Spent(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))


class PlainFrozen:
    """A model that is not trained, as the loss asks it: a `loss.Frozen`."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def log_probs(self, data: TensorDict, rows: Tensor) -> Tensor:
        """As of `loss.Frozen`."""
        ids = _chosen(data, rows)
        with torch.no_grad():
            return _next_log_probs(logits_of(self._model, ids), torch.cat(ids))

    def logits(self, data: TensorDict, rows: Tensor) -> Tensor:
        """As of `loss.Frozen`."""
        with torch.no_grad():
            return logits_of(self._model, _chosen(data, rows))


def train(
    model: Any,
    method: Method,
    files: Mapping[str, Sequence[Row]],
    tokenizer: Any,
    learning_rate: float,
    how: Schedule,
    seed: int,
    reinforced: Any = None,
) -> tuple[list[float], Spent]:
    """Train `model` in place at a constant learning rate; the loss of each step, and the cost.

    Args:
        files: side to rows as of `read_sft_rows`, those of `method.data` at least.
        seed: of the order of rows and of draws.
        reinforced: `model` trained further on the answers to forget; for methods with `Method.reinforced`.
    """
    begun = time.process_time()
    start = PlainFrozen(copy.deepcopy(model)) if method.referenced else None
    loss_of = MethodLoss(method, start, PlainFrozen(reinforced) if method.reinforced else None)
    dataset = GroupDataset(files, method, tokenizer, MAX_LENGTH, seed)
    optimizer = AdamW(model.parameters(), learning_rate, weight_decay=how.weight_decay)
    losses, trained, compute = [], 0, 0
    for keys in steps(len(dataset), how, seed):
        data = packed(dataset.__getitems__(keys))
        loss = batch_loss(loss_of, method, model, data)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), how.grad_clip)
        optimizer.step()
        losses.append(loss.item())
        trained += data["input_ids"].values().numel()
        compute += 3 * data["input_ids"].values().numel() + _frozen_tokens(method, data)
    return losses, Spent(trained, float(compute), time.process_time() - begun)


def steps(rows: int, how: Schedule, seed: int) -> Iterator[list[Key]]:
    """The groups of each step: every epoch in an order of its own, without its incomplete last batch."""
    for epoch in range(how.epochs):
        order = random.Random(f"order {seed} {epoch}").sample(range(rows), rows)
        for first in range(0, rows - how.batch_size + 1, how.batch_size):
            yield [(epoch, place) for place in order[first : first + how.batch_size]]


def packed(rows: Sequence[Tokens]) -> TensorDict:
    """Rows one after another, each key a jagged tensor, as verl's collator makes them."""
    nested = {
        key: torch.nested.as_nested_tensor([row[key] for row in rows], layout=torch.jagged)
        for key in ("input_ids", "loss_mask", "side")
    }
    return TensorDict(nested, batch_size=[len(rows)])


def batch_loss(loss_of: MethodLoss, method: Method, model: Any, data: TensorDict) -> Tensor:
    """The loss of a whole batch in one pass, with gradient."""
    data.set_non_tensor("dp_size", 1)
    data.set_non_tensor("groups", len(data) // len(method.layout))
    for name, count in batch.counts(data, method.kl_positions).items():
        data.set_non_tensor(name, count)
    logits = logits_of(model, data["input_ids"].unbind())
    log_probs = _next_log_probs(logits, data["input_ids"].values())
    output = {"log_probs": _jagged(log_probs, data)}
    if method.needs_logits:
        terms = loss_of(student_logits=logits[None], data=data)
        output |= {name: _jagged(values[0], data) for name, values in terms.items()}
    loss, _ = loss_of(model_output=output, data=data)
    return loss


def logits_of(model: Any, ids: Sequence[Tensor]) -> Tensor:
    """Logits at all positions of the rows `ids`, row by row: [positions, V].

    Rows are padded on the right, where a causal model does not look.
    """
    lengths = torch.tensor([len(row) for row in ids])
    padded = pad_sequence(list(ids), batch_first=True)
    logits = model(input_ids=padded, use_cache=False).logits
    return logits[torch.arange(padded.shape[1]) < lengths[:, None]]


def answer_log_probs(model: Any, rows: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
    """Summed log-prob of each row's answer, and its tokens: [rows] each; no gradient."""
    data = packed([{**row, "side": torch.tensor([0])} for row in rows])
    with torch.no_grad():
        logits = logits_of(model, data["input_ids"].unbind())
    found = batch.MicroBatch(data).answers(_next_log_probs(logits, data["input_ids"].values()), "forget")
    return found.log_probs, found.lengths


def _next_log_probs(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-prob of the token after each position; of a row's last one no answer makes use."""
    return logits.log_softmax(-1).gather(-1, ids.roll(-1)[:, None])[:, 0]


def _chosen(data: TensorDict, rows: Tensor) -> list[Tensor]:
    ids = data["input_ids"].unbind()
    return [ids[row] for row in rows.tolist()]


def _jagged(values: Tensor, data: TensorDict) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(values, data["input_ids"].offsets())


def _frozen_tokens(method: Method, data: TensorDict) -> int:
    """Tokens that passed through frozen models."""
    micro, lengths = batch.MicroBatch(data), data["input_ids"].offsets().diff()
    return sum(int(lengths[micro.rows(*sides)].sum()) for sides in (method.referenced, method.reinforced))
