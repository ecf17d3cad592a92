"""Audit by a linear probe: whether hidden states tell a right answer from a swapped one.

Protocol: a statement is a prompt of evaluation with an answer behind it, and its state is that of the
answer's last token behind one layer. Each fact gives two statements: its own answer is true, and the answer
of another fact of the same kind is swapped. Facts swap in pairs, so that every answer occurs once as true
and once as swapped, and the answers alone say nothing. A logistic regression with an L2 penalty is trained
on facts to retain. Its layer is the one with the highest AUC on retain facts that were held out, by folds
over pairs of facts. It is then trained on all retain facts, and its score is the AUC on the facts to forget;
a fact's own score is its part in the AUC. Chance is 0.5. The setting `shuffled` is the control: the same
probe trained on shuffled labels: of each retain fact, chance decides which statement is called true. The
recall of retained facts is replaced by the AUC on held-out retain facts, which is the highest of all layers
and hence too high.

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
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recipe.rerule.evaluation.attacks.attack import (
    FORGET,
    RETAIN,
    Attack,
    Material,
    Models,
    Options,
    Row,
    row,
)
from recipe.rerule.evaluation.attacks.facts import (
    FactQuestion,
    comparable_questions,
    first_questions,
    swapped_answers,
)
from recipe.rerule.evaluation.attacks.forward import Piece, asked_piece, states
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
        retain_auc: of this layer on retain facts that were held out.
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

    Raises ValueError as `swapped_answers`, `asked_piece` and `states`.
    """
    swapped = swapped_answers(questions, seed)
    answers = [*(one.answer for one in questions), *(answer for answer, _ in swapped)]
    pieces = []
    for question, answer in zip([*questions, *questions], answers, strict=True):
        ids = asked_piece(tokenizer, question.prompt, answer).ids
        # A token that would follow the answer is not seen by the state before it.
        pieces.append(Piece([*ids, ids[-1]], len(ids), answer))
    found = torch.stack([state[:, -1] for state in states(model, pieces, batch_size)])
    true, other = found.split(len(questions))
    return Statements(true, other, tuple(group for _, group in swapped))


def probe(retain: Statements, forget: Statements, seed: int, penalty: float = 1.0) -> Probed:
    """Train on facts to retain, and score the facts to forget.

    Args:
        seed: of the folds and the shuffled labels.
        penalty: of the logistic regression's squared weights.

    Raises ValueError for fewer than two groups of facts to retain, or no facts to forget.
    """
    _check_groups(retain.groups, len(forget.groups))
    layers = range(retain.true.shape[1])
    found = [_held_out_auc(retain, layer, seed, penalty) for layer in layers]
    layer = max(layers, key=lambda number: found[number])
    generator = torch.Generator().manual_seed(seed)
    flip = torch.rand(len(retain.groups), generator=generator)[:, None, None] < 0.5
    by_chance = Statements(
        retain.swapped.where(flip, retain.true), retain.true.where(flip, retain.swapped), retain.groups
    )
    honest, shuffled = (
        placements(*_scored(trained, forget, layer, penalty)) for trained in (retain, by_chance)
    )
    return Probed(layer, found[layer], honest, shuffled)


def _check_groups(retain: Sequence[Hashable], forget: int) -> None:
    if len(set(retain)) < 2 or not forget:
        raise ValueError(
            f"a probe needs at least 4 facts to retain and 2 to forget; there are {len(retain)} and "
            f"{forget} whose answers can be swapped"
        )


def _held_out_auc(given: Statements, layer: int, seed: int, penalty: float) -> float:
    """Mean over folds of the AUC on facts that were held out."""
    names = sorted(set(given.groups), key=repr)
    random.Random(f"probe {seed}").shuffle(names)
    fold = {name: number % min(FOLDS, len(names)) for number, name in enumerate(names)}
    of_fact = torch.tensor([fold[name] for name in given.groups])
    found = []
    for number in range(max(fold.values()) + 1):
        rest, held_out = (
            Statements(given.true[mask], given.swapped[mask], ())
            for mask in (of_fact != number, of_fact == number)
        )
        true, swapped = _scored(rest, held_out, layer, penalty)
        found.append(auc(swapped.numpy(), true.numpy()))
    return float(np.mean(found))


def _scored(trained: Statements, asked: Statements, layer: int, penalty: float) -> tuple[Tensor, Tensor]:
    """The scores of the true and of the swapped statements of `asked`, [facts] each."""
    rows = torch.cat([trained.true[:, layer], trained.swapped[:, layer]])
    labels = torch.arange(len(rows)) < len(trained.true)
    classifier = fit(rows, labels, penalty)
    return classifier.scores(asked.true[:, layer]), classifier.scores(asked.swapped[:, layer])


def _questions(material: Material) -> tuple[list[FactQuestion], ...]:
    """Of the forget and of the retain side. Raises ValueError."""
    sides = material.sides.values()
    return tuple(comparable_questions(first_questions(material, asked, phrasings=1)) for asked in sides)


def _check(material: Material, options: Options) -> None:
    forget, retain = _questions(material)
    _check_groups([group for _, group in swapped_answers(retain, 0)], len(forget))


def _measure(models: Models, material: Material, options: Options) -> list[Row]:
    sides, found = _questions(material), []
    for seed in range(material.seeds):
        forget, retain = (statements(models.attacked, material.tokenizer, side, seed) for side in sides)
        probed = probe(retain, forget, seed)
        for setting, parts in (("", probed.forget), ("shuffled", probed.shuffled)):
            found += [
                material.row(FORGET, one.probe, one.prompt, part, setting=setting, sample=seed)
                for one, part in zip(sides[0], parts, strict=True)
            ]
            retained = {"side": RETAIN, "fact": "held out", "score": probed.retain_auc}
            found.append(row(setting=setting, sample=seed, **retained))
    return found


ATTACKS = (
    Attack(
        name="linear_probe",
        title="linear probe",
        tells="A classifier of hidden states tells true statements from swapped ones; the score is its AUC.",
        default=True,
        has_before=False,
        measure=_measure,
        check=_check,
    ),
)
