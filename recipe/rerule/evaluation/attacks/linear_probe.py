"""Audit by a linear probe: whether hidden states tell a right answer from a swapped one.

Protocol: a statement is a prompt of evaluation with an answer behind it, and its state is that of the
answer's last token behind one layer. Each fact gives two statements: its own answer is true, and the answer
of another fact of the same kind is swapped. Facts swap in pairs, so that every answer occurs once as true
and once as swapped, and the answers alone say nothing. A logistic regression with an L2 penalty is trained
on facts to retain. Its layer is the one with the highest AUC on retain facts that were held out, by folds
over pairs of facts. It is then trained on all retain facts, and its score is the AUC on the facts to forget.
Chance is 0.5. The control is the same probe trained on shuffled labels: of each retain fact, chance decides
which statement is called true.

Values of facts are unique, so that a probe cannot be trained to name them; it can only learn what a true
statement looks like, and be asked about facts that it was not trained on.

Sources: probing for the truth of statements is Azaria & Mitchell's (arXiv:2304.13734); shuffled labels are a
control as of Hewitt & Liang (arXiv:1909.03368).

Traps: the layer must not be chosen on the facts to forget. Both facts of a pair must be in one fold: a probe
that knows an answer as true from one fold takes it for true where it is swapped in another, which drives the
AUC of held-out facts towards 0. An AUC near 0.5 for the original model too means that the probe has not
learned what truth looks like, and says nothing of forgetting. A model that never knew the facts can be above
0.5 where values can be guessed.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recipe.rerule.evaluation.attacks.fact_questions import (
    ComparisonError,
    FactQuestion,
    swapped_answers,
)
from recipe.rerule.evaluation.attacks.hidden_states import states
from recipe.rerule.evaluation.attacks.likelihood import Piece, asked_piece
from recipe.rerule.evaluation.attacks.logistic import fit
from recipe.rerule.evaluation.metrics import auc

FOLDS = 5


@dataclass(frozen=True)
class Statements:
    """Pairs of states of true and swapped statements.

    Attributes:
        true, swapped: of each fact and layer, [facts, layers, hidden size].
        groups: of the facts that have swapped their answers among each other, [facts].
    """

    true: Tensor
    swapped: Tensor
    groups: tuple[Hashable, ...]


@dataclass(frozen=True)
class Probed:
    """What a probe finds.

    Attributes:
        layer: from 0, chosen on facts to retain.
        retain_auc: of this layer on retain facts that were held out; the highest of all layers, hence too
            high.
        forget, shuffled: the part of each fact to forget in the AUC of this layer (`placements`), of the
            probe and of one that was trained on shuffled labels.
    """

    layer: int
    retain_auc: float
    forget: tuple[float, ...]
    shuffled: tuple[float, ...]


def placements(true: Tensor, swapped: Tensor) -> tuple[float, ...]:
    """The part of each fact in the AUC, which is their mean.

    Of a fact, the share of swapped statements below its true one, averaged with the share of true statements
    above its swapped one; ties count one half. So facts can be resampled with both of their statements.

    Args:
        true, swapped: scores of the statements, [facts] each.
    """
    above = (true[:, None] > swapped).double() + (true[:, None] == swapped).double() / 2
    return tuple(((above.mean(1) + above.mean(0)) / 2).tolist())


def statements(
    model: Any, tokenizer: Any, questions: Sequence[FactQuestion], seed: int, batch_size: int = 8
) -> Statements:
    """The states of the true and the swapped statement of each fact.

    Raises:
        ComparisonError: as `swapped_answers`.
        LayersError: the model is no plain decoder.
        LikelihoodError: a statement that the model cannot be shown.
        RequestError: the tokenizer cannot turn a statement into tokens.
    """
    swapped = swapped_answers(questions, seed)
    pieces = [_last_token(tokenizer, one, one.answer) for one in questions]
    pieces += [_last_token(tokenizer, one, swap.answer) for one, swap in zip(questions, swapped, strict=True)]
    found = torch.stack([state[:, -1] for state in states(model, pieces, batch_size)])
    true, other = found.split(len(questions))
    return Statements(true, other, tuple(swap.group for swap in swapped))


def probe(retain: Statements, forget: Statements, seed: int, penalty: float = 1.0) -> Probed:
    """Train on facts to retain, and score the facts to forget.

    Args:
        seed: of the folds and the shuffled labels.
        penalty: of the logistic regression's squared weights.

    Raises:
        ComparisonError: there are fewer than two groups of facts to retain, or no facts to forget.
    """
    check_groups(retain.groups, forget.groups)
    layers = range(retain.true.shape[1])
    found = [_held_out_auc(retain, layer, seed, penalty) for layer in layers]
    layer = max(layers, key=lambda number: found[number])
    honest, shuffled = (
        placements(*_scored(trained, forget, layer, penalty)) for trained in (retain, _shuffled(retain, seed))
    )
    return Probed(layer, found[layer], honest, shuffled)


def check_groups(retain: Sequence[Hashable], forget: Sized) -> None:
    """Refuse too few facts.

    Args:
        retain: the group of each fact to retain.
        forget: the facts to forget.

    Raises:
        ComparisonError: there are fewer than two groups of facts to retain, or no facts to forget.
    """
    if len(set(retain)) < 2 or not len(forget):
        raise ComparisonError(
            f"a probe needs at least 4 facts to retain and 2 to forget; there are {len(retain)} and "
            f"{len(forget)} whose answers can be swapped"
        )


def _last_token(tokenizer: Any, one: FactQuestion, answer: str) -> Piece:
    """A piece whose one scored token would follow the answer: its state is that of the answer's last token.

    The token itself is never seen by the state before it.
    """
    piece = asked_piece(tokenizer, one.prompt, answer)
    return Piece([*piece.ids, piece.ids[-1]], len(piece.ids), answer)


def _held_out_auc(given: Statements, layer: int, seed: int, penalty: float) -> float:
    """Mean over folds of the AUC on facts that were held out."""
    names = sorted(set(given.groups), key=repr)
    random.Random(f"probe {seed}").shuffle(names)
    fold = {name: number % min(FOLDS, len(names)) for number, name in enumerate(names)}
    of_fact = torch.tensor([fold[name] for name in given.groups])
    found = []
    for number in range(max(fold.values()) + 1):
        rest, held_out = (_chosen(given, mask) for mask in (of_fact != number, of_fact == number))
        found.append(_auc(*_scored(rest, held_out, layer, penalty)))
    return float(np.mean(found))


def _chosen(given: Statements, mask: Tensor) -> Statements:
    groups = tuple(group for group, kept in zip(given.groups, mask.tolist(), strict=True) if kept)
    return Statements(given.true[mask], given.swapped[mask], groups)


def _shuffled(given: Statements, seed: int) -> Statements:
    """Chance decides of each fact which statement is called true."""
    generator = torch.Generator().manual_seed(seed)
    flip = torch.rand(len(given.groups), generator=generator)[:, None, None] < 0.5
    return Statements(
        given.swapped.where(flip, given.true), given.true.where(flip, given.swapped), given.groups
    )


def _scored(trained: Statements, asked: Statements, layer: int, penalty: float) -> tuple[Tensor, Tensor]:
    """The scores of the true and of the swapped statements of `asked`, [facts] each."""
    rows = torch.cat([trained.true[:, layer], trained.swapped[:, layer]])
    labels = torch.cat([torch.ones(len(trained.groups)), torch.zeros(len(trained.groups))])
    classifier = fit(rows, labels, penalty)
    return classifier.scores(asked.true[:, layer]), classifier.scores(asked.swapped[:, layer])


def _auc(true: Tensor, swapped: Tensor) -> float:
    return auc(swapped.numpy(), true.numpy())
