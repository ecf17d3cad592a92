"""Audit by membership inference: do the texts to forget still look like training data?

Protocol: every text of `--texts` is scored by the attacked model, and the number of a score is the AUC of the
other texts above the texts to forget, one setting a score. The interval resamples the texts of each set. All
scores are higher for a text that looks less like training data, so that the AUC is 0.5 where the sets look
alike to the model, and above where the texts to forget look trained on. What counts is the difference from
the never-knew model's AUC, since the sets can differ in topic. Settings:

- loss: mean negative log-likelihood of a token, in nats. zlib: loss over the bytes that zlib packs the text
  into. min_20, min_40: Min-K% (Shi et al., arXiv:2310.16789) of these shares of the tokens.
- min_plus_plus_20, min_plus_plus_40: Min-K%++ (Zhang et al., arXiv:2404.02936), the same of (log p - mean) /
  deviation, with mean and deviation of log p over the vocabulary under the model's own distribution.
- relative_conditional (ReCaLL, Xie et al., arXiv:2406.15968): minus LL(x behind a prefix of non-members) /
  LL(x), with mean log-likelihoods of the same tokens. Members lose more of theirs, so that their ratio of two
  negative numbers is higher.
- gradient_norm (GradNorm; full budget): the norm of the gradient of the loss in all parameters together, one
  text at a time, without dropout. gradient_norm_open_unlearning is what open-unlearning's code computes: the
  mean over tensors of their gradients' norms. There it is computed in training mode; here dropout is off.

`membership_reference` (Carlini et al., arXiv:2012.07805) is the loss minus that of the never-knew model on
the same tokens.

Traps: the loss of other code often counts the end of sequence, which here is never counted. Min-K%++ needs
the whole distribution of every token, hence this forward pass. Texts of the prefix are left out of the other
set in relative_conditional alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recipe.rerule.evaluation.attacks.attack import (
    FORGET,
    OTHERS,
    Attack,
    Material,
    Models,
    Options,
    Row,
    row,
)
from recipe.rerule.evaluation.attacks.forward import (
    Piece,
    batches,
    right_logits,
    text_piece,
)
from recipe.rerule.evaluation.metrics import SHARES, min_k_score, text_scores
from recipe.rerule.process import Progress
from recipe.rerule.training.prompts import prompt_ids

FEWEST_TEXTS = 2
"""Of each set: an AUC of single texts says nothing."""
_POSITIONS = 64
"""Positions whose distributions are in memory in float64 at a time."""
_ROUNDING = 1e-12
"""Differences of this share of a log-probability are rounding in float64."""


@dataclass(frozen=True)
class TokenScores:
    """What a model says of the scored tokens of a piece, in their order.

    Attributes:
        log_probs: of the right tokens, in nats, computed in float64 from the model's own logits.
        means: of log p over the vocabulary, under the model's own distribution.
        deviations: of log p, likewise.
    """

    log_probs: list[float]
    means: list[float]
    deviations: list[float]

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood of a token, in nats."""
        return -float(np.mean(self.log_probs))


def token_scores(model: Any, pieces: Sequence[Piece]) -> list[TokenScores]:
    """Scores of each piece by a causal model of transformers.

    Raises ValueError as `batches`, or a token whose log-probability is not a finite number.
    """
    found: list[TokenScores] = []
    with torch.no_grad(), Progress("likelihood", len(pieces), "texts") as progress:
        for batch in batches(model, pieces):
            for piece, logits in zip(batch, right_logits(model, batch), strict=True):
                right = piece.right.to(logits.device)
                parts = zip(logits.split(_POSITIONS), right.split(_POSITIONS), strict=True)
                columns = zip(*(_statistics(part, wanted) for part, wanted in parts), strict=True)
                scores = TokenScores(*(torch.cat(column).tolist() for column in columns))
                if not np.isfinite(scores.log_probs).all():
                    raise ValueError(
                        f"text {len(found)} has a token without a finite log-likelihood: {piece.text[:40]!r}"
                    )
                found.append(scores)
                progress.advance()
    return found


def _statistics(logits: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of the right token, mean and deviation of log p: [positions] each."""
    log_p = logits.double().log_softmax(-1)
    p = log_p.exp()
    # Deviations from the highest value, which are exactly 0 for a uniform distribution. A token of
    # probability 0 counts nothing, though its log-probability is -inf.
    highest = log_p.amax(-1, keepdim=True)
    below = (log_p - highest).where(p > 0, 0)
    mean = (p * below).sum(-1, keepdim=True)
    deviation = (p * (below - mean).square()).sum(-1).sqrt()
    return log_p.gather(-1, right)[:, 0], (highest + mean)[:, 0], deviation


def min_k_plus_plus(tokens: TokenScores, share: float) -> float:
    """Min-K%++: minus the mean of the lowest `share` of standardised tokens.

    A token at the mean counts 0, and so does every token of a uniform distribution, whose deviation is 0. As
    for `min_k_score`, at least one token counts.
    """
    log_probs, means, deviations = map(np.asarray, (tokens.log_probs, tokens.means, tokens.deviations))
    difference = log_probs - means
    difference[np.abs(difference) <= _ROUNDING * np.maximum(1, np.abs(means))] = 0
    standardised = np.divide(difference, deviations, out=np.zeros_like(difference), where=difference != 0)
    return min_k_score(standardised.tolist(), share)


def behind_prefix(tokenizer: Any, prefix: Sequence[str], text: str) -> Piece:
    """The text of `text_piece`, with the same tokens scored, behind other texts, each in a paragraph."""
    bos = len(prompt_ids(tokenizer, [{"role": "user", "content": ""}], raw=True))
    before = text_piece(tokenizer, "".join(f"{one}\n\n" for one in prefix)).ids
    alone = text_piece(tokenizer, text)
    return Piece([*before, *alone.ids[bos:]], len(before) + alone.start - bos, text)


def gradient_norms(model: Any, pieces: Sequence[Piece]) -> list[dict[str, float]]:
    """Both norms of each piece, by name. Raises ValueError: a piece that the model cannot be shown."""
    parameters, found = list(model.requires_grad_(True).parameters()), []
    with Progress("gradients", len(pieces), "texts") as progress:
        for (piece,) in batches(model, pieces, 1):
            (logits,) = right_logits(model, [piece])
            right = piece.right[:, 0].to(logits.device)
            loss = torch.nn.functional.cross_entropy(logits.float(), right)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            norms = torch.stack([one.float().norm() for one in gradients if one is not None])
            found.append(
                {"gradient_norm": float(norms.norm()), "gradient_norm_open_unlearning": float(norms.mean())}
            )
            progress.advance()
    model.requires_grad_(False)
    return found


@dataclass(frozen=True)
class _Text:
    """A text to score: its side, its number there, and its tokens."""

    side: str
    number: int
    text: str
    piece: Piece

    def row(self, setting: str, score: float) -> Row:
        """Each text is a fact of its own."""
        named = {"probe": self.number, "side": self.side, "fact": f"text {self.number}"}
        return row(**named, kind="text", prompt=self.text, setting=setting, score=score)


def _texts(material: Material, options: Options) -> list[_Text]:
    """The texts to forget and the others. Raises ValueError where a model cannot be shown them."""
    others = [name for name in material.texts if name != FORGET]
    if FORGET not in material.texts or len(others) != 1:
        raise ValueError(
            "membership inference needs texts to forget and one other set; there are "
            f"{', '.join(material.texts) or 'none'}. Give a folder of both with --texts"
        )
    found = []
    for side, name in ((FORGET, FORGET), (OTHERS, others[0])):
        members = material.texts[name]
        if len(members) < FEWEST_TEXTS:
            raise ValueError(
                f"--texts: set {name} has {len(members)} text; at least {FEWEST_TEXTS} are needed"
            )
        for number, text in enumerate(members):
            piece = text_piece(material.tokenizer, text)
            where, length = f"--texts: text {number} of set {name}", len(piece.ids)
            if length <= piece.start:
                raise ValueError(f"{where} has no token to score behind another one: {text[:40]!r}")
            if material.context is not None and length > material.context:
                raise ValueError(
                    f"{where} has {length} tokens, and the models take {material.context}; shorten it"
                )
            found.append(_Text(side, number, text, piece))
    return found


def _measure(models: Models, material: Material, options: Options) -> list[Row]:
    texts = _texts(material, options)
    pieces = [one.piece for one in texts]
    tokens = token_scores(models.attacked, pieces)
    found = [
        text_scores(one.text, of_text.log_probs)
        | {f"min_plus_plus_{round(100 * share)}": min_k_plus_plus(of_text, share) for share in SHARES}
        for one, of_text in zip(texts, tokens, strict=True)
    ]
    if options["gradients"]:
        norms = gradient_norms(models.attacked, pieces)
        found = [one | more for one, more in zip(found, norms, strict=True)]
    conditional = _conditional(models, material, texts, [one.loss for one in tokens], options["shots"])
    return [
        *(one.row(name, score) for one, own in zip(texts, found, strict=True) for name, score in own.items()),
        *conditional,
    ]


def _conditional(
    models: Models, material: Material, texts: Sequence[_Text], losses: Sequence[float], shots: int
) -> list[Row]:
    """ReCaLL behind as many of the other texts as fit, at most `shots`; nothing where not even one fits.

    Raises ValueError: the loss of a text is not above 0, so that a ratio to it means nothing.
    """
    others = [one.text for one in texts if one.side == OTHERS]
    for count in range(min(shots, len(others) - 2), 0, -1):
        asked = [
            (one, loss, behind_prefix(material.tokenizer, others[:count], one.text))
            for one, loss in zip(texts, losses, strict=True)
            if one.side == FORGET or one.number >= count
        ]
        if material.context is None or all(len(piece.ids) <= material.context for *_, piece in asked):
            if not (lowest := min(loss for _, loss, _ in asked)) > 0:
                raise ValueError(f"the loss of a text is {lowest}, so that no ratio to it can be computed")
            behind = token_scores(models.attacked, [piece for *_, piece in asked])
            return [
                one.row("relative_conditional", -tokens.loss / loss)
                for (one, loss, _), tokens in zip(asked, behind, strict=True)
            ]
    return []


def _reference(models: Models, material: Material, options: Options) -> list[Row]:
    assert models.control is not None
    texts = _texts(material, options)
    ours, theirs = (
        token_scores(model, [one.piece for one in texts]) for model in (models.attacked, models.control())
    )
    triples = zip(texts, ours, theirs, strict=True)
    return [one.row("", own.loss - other.loss) for one, own, other in triples]


ATTACKS = (
    Attack(
        name="membership",
        title="membership",
        tells="Whole texts to forget are compared with others by scores of membership; the number is an AUC.",
        quick={"shots": 4, "gradients": False},
        full={"gradients": True},
        statistic="auc",
        has_before=False,
        measure=_measure,
        check=_texts,
    ),
    Attack(
        name="membership_reference",
        title="membership (reference)",
        tells="The loss of whole texts is compared with that of the never-knew model; the number is an AUC.",
        needs=frozenset({"control"}),
        statistic="auc",
        has_before=False,
        measure=_reference,
        check=_texts,
    ),
)
