"""Audit by the logit lens: what the layers of a model say before its last layers change their mind.

Protocol: the right answer stands behind the prompt of evaluation. Behind every layer, the state from which a
fact token is predicted is read by the final norm and the output layer of the *original* model, and the mean
log-probability of the fact tokens is noted. One reader for all models keeps a changed output layer from
hiding what the layers hold. Behind the last layer of the original model, this is the model's own
log-probability. The score of a fact is the highest of these probabilities a token, exp of the mean
log-probability; the highest of several noisy numbers is too high, for a model that never knew the fact too.

Sources: the logit lens is nostalgebraist's (2020); the fixed reader is that of the code of arXiv:2605.24614
(`compute_representation_baselines.py`).

Traps: the last of the `hidden_states` of transformers is already normed, and a second norm changes it. The
output layer of the original model was not trained to read early layers, so that a low value there says
little. A fact that several layers say is no less forgotten for a user who sees answers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recipe.rerule.evaluation.attacks.asking import first_questions
from recipe.rerule.evaluation.attacks.attack import Attack, Material, Models, Options, Row
from recipe.rerule.evaluation.attacks.forward import (
    Piece,
    asked_piece,
    check_alike,
    decoder_of,
    mean_log_probs,
    states,
)

_NEAR = 1e-3
"""Largest difference of two computations of a log-probability, in nats, that is taken for rounding."""


def lens(reader: Any, source: Any, pieces: Sequence[Piece]) -> Tensor:
    """Mean log-probability of each piece's scored tokens behind every layer: [pieces, layers], float64.

    Args:
        reader: the original model, whose final norm and output layer read.
        source: the model whose states are read; may be the reader.
        pieces: encoded with the tokenizer that both models share.

    Raises ValueError as `check_alike` and `batches`; or the reader does more to its last state than norm and
    output layer do, as with capped or scaled logits.
    """
    check_alike(reader, source)
    read = _read(reader, pieces[0], states(reader, pieces[:1])[0])[-1]
    own = mean_log_probs(reader, pieces[:1])[0]
    if not abs(float(read - own)) <= _NEAR * max(1.0, abs(float(own))):
        raise ValueError(
            f"{type(reader).__name__} changes its logits behind the output layer, so that they cannot be "
            "read out of hidden states; this audit reads models such as Llama, Qwen and Mistral"
        )
    kept = states(source, pieces)
    return torch.stack([_read(reader, piece, one) for piece, one in zip(pieces, kept, strict=True)])


def _read(reader: Any, piece: Piece, kept: Tensor) -> Tensor:
    """What the reader's norm and head read of a piece's states: the mean log-probability, [layers]."""
    parts, found = decoder_of(reader), []
    weights = next(parts.norm.parameters())
    with torch.no_grad():
        for layer in kept:  # one at a time, since a vocabulary is large
            logits = parts.head(parts.norm(layer.to(weights.device, weights.dtype)))
            found.append(logits.double().log_softmax(-1).cpu().gather(-1, piece.right).mean())
    return torch.stack(found)


def _measure(models: Models, material: Material, options: Options) -> list[Row]:
    assert models.original is not None
    reader, found = models.original(), []
    for side, asked in material.sides.items():
        questions = first_questions(material, asked, options["phrasings"])
        pieces = [
            asked_piece(material.tokenizer, one.request.prompt, one.probe.golds[0]) for one in questions
        ]
        highest = lens(reader, models.attacked, pieces).exp().amax(-1).tolist() if pieces else []
        found += [
            material.row(side, one.probe, one.request.prompt, score)
            for one, score in zip(questions, highest, strict=True)
        ]
    return found


ATTACKS = (
    Attack(
        name="logit_lens",
        title="logit lens",
        tells="The right answer is looked for in the hidden states behind every layer.",
        default=True,
        quick={"phrasings": 1},
        full={"phrasings": 3},
        needs=frozenset({"original"}),
        has_before=False,
        measure=_measure,
    ),
)
