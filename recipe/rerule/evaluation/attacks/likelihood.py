"""Audits by likelihood: what one forward pass of a model says about texts and answers.

Protocol: the model sees the right tokens, and each scored token is judged given the right ones before it. An
answer is scored behind its prompt, a text behind BOS; where a tokenizer adds no BOS, a text's first token is
not scored, since nothing stands before it. No end-of-sequence token is scored, for any of the numbers. Log
probabilities, their means and their deviations are computed in float64 from the model's own logits.

Ranks are those of vLLM: the number of tokens that are at least as likely as the right one. It is 1 where the
right token alone is the most likely one, and 2 where it shares the highest probability with another token.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from recipe.rerule.evaluation.attacks.estimators import (
    exact_memorization,
    extraction_strength,
    min_k_plus_plus,
)
from recipe.rerule.evaluation.engine.encoding import encode_one
from recipe.rerule.evaluation.engine.requests import Likelihood, PromptText
from recipe.rerule.evaluation.metrics import min_k_score
from recipe.rerule.process.progress import Progress
from recipe.rerule.training.prompts import answer_ids, chat_answer_ids, prompt_ids

SHARES = (0.2, 0.4)
"""Of Min-K% and Min-K%++, as the benchmarks use them."""
_POSITIONS = 64
"""Positions whose distributions are in memory in float64 at a time."""


class LikelihoodError(ValueError):
    """A text that cannot be scored; the message is one line and says which."""


@dataclass(frozen=True)
class Piece:
    """Token ids of which those from `start` on are scored, and the text that they stand for."""

    ids: list[int]
    start: int
    text: str


@dataclass(frozen=True)
class TokenScores:
    """What a model says of the scored tokens of a piece, in their order.

    Attributes:
        log_probs: of the right tokens, in nats.
        ranks: of the right tokens, from 1.
        means: of log p over the vocabulary, under the model's own distribution.
        deviations: of log p, likewise.
    """

    log_probs: tuple[float, ...]
    ranks: tuple[int, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]


def text_piece(tokenizer: Any, text: str) -> Piece:
    """A text from its beginning, as the tokenizer itself takes it, without EOS."""
    before, whole = (
        prompt_ids(tokenizer, [{"role": "user", "content": content}], raw=True) for content in ("", text)
    )
    return Piece(whole, max(1, len(before)), text)


def answer_piece(tokenizer: Any, messages: Sequence[Mapping[str, str]], answer: str, raw: bool) -> Piece:
    """An answer behind its prompt, without the end of its turn.

    Raises:
        PromptError, jinja2.TemplateError: the tokenizer cannot turn it into tokens.
    """
    prompt = prompt_ids(tokenizer, messages, raw)
    turn = answer_ids(tokenizer, answer) if raw else chat_answer_ids(tokenizer, messages, answer)
    return Piece([*prompt, *turn[:-1]], len(prompt), answer)


def asked_piece(tokenizer: Any, prompt: PromptText, answer: str) -> Piece:
    """An answer behind a prompt of a benchmark, in the tokens of the engine, without the end of its turn.

    Raises:
        RequestError: the tokenizer cannot turn it into tokens.
    """
    encoded = encode_one(tokenizer, Likelihood(f"{answer[:40]!r}", prompt, answer))
    assert encoded.answer_start is not None
    return Piece(encoded.ids[:-1], encoded.answer_start, answer)


def fact_piece(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], answer: str, fact: str, raw: bool
) -> Piece:
    """As `answer_piece`, but only the tokens of `fact` within the answer are scored.

    They are the shortest run of tokens whose text holds the fact, so that a token which the fact shares with
    what surrounds it counts. What stands behind the fact is left out: it changes nothing before it.

    Raises:
        LikelihoodError: the answer does not hold the fact.
        PromptError, jinja2.TemplateError: as `answer_piece`.
    """
    whole = answer_piece(tokenizer, messages, answer, raw)

    def holds(first: int, end: int) -> bool:
        return fact in tokenizer.decode(whole.ids[first:end])

    places = range(whole.start, len(whole.ids))
    end = next((place + 1 for place in places if holds(whole.start, place + 1)), None)
    if not fact or end is None:
        raise LikelihoodError(f"the answer {answer[:40]!r} does not hold the fact {fact[:40]!r}")
    first = next(place for place in reversed(range(whole.start, end)) if holds(place, end))
    return Piece(whole.ids[:end], first, fact)


def token_scores(model: Any, pieces: Sequence[Piece], batch_size: int = 8) -> list[TokenScores]:
    """Scores of each piece by a causal model of transformers.

    Args:
        batch_size: pieces in one forward pass.

    Raises:
        LikelihoodError: naming a piece (from 0) that has no scored token, is too long for the model, or has a
            token whose log-probability is not a finite number.
    """
    check_pieces(model, pieces)
    found: list[TokenScores] = []
    model.eval()
    with torch.no_grad(), Progress("likelihood", len(pieces), "texts") as progress:
        for first in range(0, len(pieces), batch_size):
            batch = pieces[first : first + batch_size]
            for piece, logits in zip(batch, right_logits(model, batch), strict=True):
                found.append(_scored(logits, piece, len(found)))
                progress.advance()
    return found


def scores(text: str, tokens: TokenScores) -> dict[str, float]:
    """All numbers of one text.

    loss: mean negative log-likelihood of a token, in nats. zlib: loss over the bytes that zlib packs the text
    into. min_20, min_40, min_plus_plus_20, min_plus_plus_40: Min-K% and Min-K%++ of these shares of the
    tokens. The higher any of these six, the less the text looks like training data. extraction_strength,
    extraction_strength_open_unlearning and exact_memorization: the higher, the better the model knows it.
    """
    loss = -float(np.mean(tokens.log_probs))
    log_probs, means, deviations = tokens.log_probs, tokens.means, tokens.deviations
    return {
        "loss": loss,
        "zlib": loss / len(zlib.compress(text.encode("utf-8"))),
        **{f"min_{round(100 * share)}": min_k_score(log_probs, share) for share in SHARES},
        **{
            f"min_plus_plus_{round(100 * share)}": min_k_plus_plus(log_probs, means, deviations, share)
            for share in SHARES
        },
        "extraction_strength": extraction_strength(tokens.ranks),
        "extraction_strength_open_unlearning": extraction_strength(tokens.ranks, "open_unlearning"),
        "exact_memorization": exact_memorization(tokens.ranks),
    }


def check_pieces(model: Any, pieces: Sequence[Piece]) -> None:
    """Refuse pieces that the model cannot be shown.

    Raises:
        LikelihoodError: naming a piece (from 0) that has no scored token, or is too long for the model.
    """
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for number, piece in enumerate(pieces):
        if not 1 <= piece.start < len(piece.ids):
            raise LikelihoodError(
                f"text {number} has no token to score behind another one: {piece.text[:40]!r}"
            )
        if longest is not None and len(piece.ids) > longest:
            raise LikelihoodError(f"text {number} has {len(piece.ids)} tokens; the model takes {longest}")


def right_logits(model: Any, pieces: Sequence[Piece]) -> Iterator[Tensor]:
    """Logits at the positions before each scored token, piece by piece: [scored tokens, vocabulary]."""
    ids = [torch.tensor(piece.ids) for piece in pieces]
    mask = pad_sequence([torch.ones_like(one) for one in ids], True, 0).to(model.device)
    padded = pad_sequence(ids, True, 0).to(model.device)
    logits = model(input_ids=padded, attention_mask=mask, use_cache=False).logits
    for piece, row in zip(pieces, logits, strict=True):
        yield row[piece.start - 1 : len(piece.ids) - 1]


def _scored(logits: Tensor, piece: Piece, number: int) -> TokenScores:
    right = torch.tensor(piece.ids[piece.start :], device=logits.device)[:, None]
    parts = [
        _statistics(part, wanted)
        for part, wanted in zip(logits.split(_POSITIONS), right.split(_POSITIONS), strict=True)
    ]
    log_probs, ranks, means, deviations = (torch.cat(values).tolist() for values in zip(*parts, strict=True))
    if not np.all(np.isfinite(log_probs)):
        raise LikelihoodError(
            f"text {number} has a token without a finite log-likelihood: {piece.text[:40]!r}"
        )
    return TokenScores(tuple(log_probs), tuple(ranks), tuple(means), tuple(deviations))


def _statistics(logits: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probability and rank of the right token, mean and deviation of log p: [positions] each."""
    log_p = logits.double().log_softmax(-1)
    p = log_p.exp()
    # Deviations from the highest value, which are exactly 0 for a uniform distribution. A token of
    # probability 0 counts nothing, though its log-probability is -inf.
    highest = log_p.amax(-1, keepdim=True)
    below = (log_p - highest).where(p > 0, 0)
    mean = (p * below).sum(-1, keepdim=True)
    deviation = (p * (below - mean).square()).sum(-1).sqrt()
    ranks = (logits >= logits.gather(-1, right)).sum(-1)
    return log_p.gather(-1, right)[:, 0], ranks, (highest + mean)[:, 0], deviation
