"""Membership inference: scores of whole texts that tell what a model was trained on from what it was not.

All scores are higher for a text that looks less like training data. The number of a model is an AUC: how
often a text of the other set scores above a text that was to be forgotten. It is 0.5 where the sets look
alike to the model, and above where the texts to forget look trained on.

- loss, zlib, min_20, min_40, min_plus_plus_20, min_plus_plus_40: `likelihood.scores`.
- reference (Carlini et al., arXiv:2012.07805): the loss minus that of a reference model on the same tokens.
- relative_conditional (ReCaLL, Xie et al., arXiv:2406.15968): minus LL(x behind a prefix of non-members) /
  LL(x), with mean log-likelihoods of the same tokens. Members lose more of theirs, so that their ratio of two
  negative numbers is higher.
- gradient_norm (GradNorm): the norm of the gradient of the loss in all parameters together, one text at a
  time, without dropout. gradient_norm_open_unlearning is what open-unlearning's code computes: the mean over
  tensors of their gradients' norms. There it is computed in training mode; here dropout is off.
- text_only: the same for all models: log-odds of a bag-of-words classifier that never saw the text. Its AUC
  says how far the sets differ in words alone.

Traps: the loss of other code often counts the end of sequence, which here is never counted. Min-K%++ needs
the whole distribution of every token, hence this forward pass. Where the sets differ in topic, a model that
never knew the texts is not at 0.5: compare with its AUC. Texts of the prefix are left out of the other set
in relative_conditional alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recipe.rerule.evaluation.attacks.leaks import normalised_words
from recipe.rerule.evaluation.attacks.likelihood import Piece, check_pieces, right_logits, text_piece
from recipe.rerule.evaluation.attacks.logistic import fit
from recipe.rerule.process import Progress
from recipe.rerule.training.prompts import prompt_ids

_FOLDS = 5


def reference(loss: float, reference_loss: float) -> float:
    """How much less the model expects the text than the reference model does."""
    return loss - reference_loss


def relative_conditional(conditional_loss: float, loss: float) -> float:
    """Minus the ratio of the log-likelihoods behind the prefix and alone.

    Raises:
        ValueError: the loss is not above 0, so that the ratio means nothing.
    """
    if not loss > 0:
        raise ValueError(f"the loss of a text is {loss}, so that no ratio to it can be computed")
    return -conditional_loss / loss


def behind_prefix(tokenizer: Any, prefix: Sequence[str], text: str) -> Piece:
    """The text of `text_piece`, with the same tokens scored, behind other texts, each in a paragraph."""
    bos = len(prompt_ids(tokenizer, [{"role": "user", "content": ""}], raw=True))
    before = text_piece(tokenizer, "".join(f"{one}\n\n" for one in prefix)).ids
    alone = text_piece(tokenizer, text)
    return Piece([*before, *alone.ids[bos:]], len(before) + alone.start - bos, text)


def gradient_norms(model: Any, pieces: Sequence[Piece]) -> list[dict[str, float]]:
    """Both norms of each piece, by name; the gradients that the model itself holds are not touched.

    Raises:
        LikelihoodError: a piece that the model cannot be shown.
    """
    check_pieces(model, pieces)
    found = []
    model.eval()
    with _differentiable(model) as parameters, Progress("gradients", len(pieces), "texts") as progress:
        for piece in pieces:
            norms = torch.stack([part.norm() for part in _gradients(model, parameters, piece)])
            found.append(
                {
                    "gradient_norm": float(norms.norm()),
                    "gradient_norm_open_unlearning": float(norms.mean()),
                }
            )
            progress.advance()
    return found


def text_only(
    members: Sequence[str], others: Sequence[str], penalty: float = 1.0
) -> tuple[list[float], list[float]]:
    """For each text of the two sets the log-odds that it is of the other set, by its words alone.

    A logistic regression of the numbers of times that each word occurs, as log(1 + count), trained on the
    texts of the other folds; no model is asked.

    Raises:
        ValueError: a set has fewer than 2 texts.
    """
    if min(len(members), len(others)) < 2:
        raise ValueError(f"{len(members)} and {len(others)} texts; each set needs at least 2")
    features = _bags([*members, *others])
    labels = torch.tensor([0] * len(members) + [1] * len(others))
    folds = torch.tensor([n % _FOLDS for size in (len(members), len(others)) for n in range(size)])
    found = torch.zeros(len(labels), dtype=torch.float64)
    for fold in range(int(folds.max()) + 1):
        held_out = folds == fold
        classifier = fit(features[~held_out], labels[~held_out], penalty)
        found[held_out] = classifier.scores(features[held_out])
    return found[: len(members)].tolist(), found[len(members) :].tolist()


@contextmanager
def _differentiable(model: Any) -> Iterator[list[Tensor]]:
    """The parameters of the model, of which gradients can be taken during the block."""
    parameters = list(model.parameters())
    before = [one.requires_grad for one in parameters]
    model.requires_grad_(True)
    try:
        yield parameters
    finally:
        for one, required in zip(parameters, before, strict=True):
            one.requires_grad_(required)


def _gradients(model: Any, parameters: Sequence[Tensor], piece: Piece) -> list[Tensor]:
    """Of the mean loss of the piece's scored tokens; parameters that it does not depend on are left out."""
    with torch.enable_grad():
        (logits,) = right_logits(model, [piece])
        right = torch.tensor(piece.ids[piece.start :], device=logits.device)
        loss = torch.nn.functional.cross_entropy(logits.float(), right)
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [one.float() for one in found if one is not None]


def _bags(texts: Sequence[str]) -> Tensor:
    """[texts, words]: log(1 + count) of every word that occurs in at least two texts."""
    counts = [Counter(normalised_words(text)) for text in texts]
    spread = Counter(word for one in counts for word in one)
    words = sorted(word for word, times in spread.items() if times > 1)
    table = np.array([[one[word] for word in words] for one in counts], dtype=np.float64)
    return torch.from_numpy(np.log1p(table.reshape(len(texts), len(words))))
