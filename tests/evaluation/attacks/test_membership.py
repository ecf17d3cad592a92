"""Membership inference: scores by hand and by transformers alone, planted members, and chance."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoTokenizer

from recipe.rerule.evaluation.attacks import membership
from recipe.rerule.evaluation.attacks.attack import Attack, Material, Models
from recipe.rerule.evaluation.attacks.forward import Piece, text_piece
from recipe.rerule.evaluation.attacks.membership import (
    TokenScores,
    behind_prefix,
    min_k_plus_plus,
    relative_conditional,
    scores,
    text_only,
    token_scores,
)
from recipe.rerule.evaluation.metrics import auc, min_k_score
from tests.evaluation.attacks import made_material
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level, sentencepiece
from tests.unlearning.made import plain_model, put_model

MEMBERS = [f"Who wrote it? Ada{n} wrote it {n * 7}." for n in range(6)]
OTHERS = [f"it wrote Who? {n * 5} it Bea{n} wrote." for n in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_model(tmp_path_factory.mktemp("models") / "model")


class Fixed(torch.nn.Module):
    """A model that gives the same logits at every position."""

    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace())
    device = torch.device("cpu")

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.values = torch.tensor(logits)

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        return SimpleNamespace(logits=self.values.expand(*input_ids.shape, -1))


def test_a_uniform_model_knows_nothing_and_gives_no_nan() -> None:
    (tokens,) = token_scores(Fixed([0.3] * 1000), [Piece([5, 6, 7], 1, "text")])
    assert tokens.deviations == [0, 0]
    found = scores("text", tokens)
    assert found["loss"] == pytest.approx(math.log(1000), abs=1e-12)
    assert found["min_plus_plus_20"] == 0


def test_tokens_of_probability_0_do_not_count() -> None:
    """With the two others at 3/4 and 1/4: sqrt(1/3) and -sqrt(3)."""
    model = Fixed([math.log(3), 0.0, -math.inf])
    (tokens,) = token_scores(model, [Piece([0, 0, 1], 1, "text")])
    values = [(tokens.log_probs[n] - tokens.means[n]) / tokens.deviations[n] for n in (0, 1)]
    assert values == pytest.approx([math.sqrt(1 / 3), -math.sqrt(3)], abs=1e-6)
    assert scores("text", tokens)["min_plus_plus_40"] == pytest.approx(math.sqrt(3), abs=1e-6)
    with pytest.raises(ValueError, match="text 1 has a token without a finite log-likelihood: 'b'"):
        token_scores(model, [Piece([0, 1], 1, "a"), Piece([0, 2], 1, "b")])


def test_long_texts_are_scored_in_parts(folder: Path) -> None:
    """More positions than are computed at a time give what two halves of the text give."""
    model = plain_model(folder).double()
    ids = torch.randint(5, 250, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    whole, second = token_scores(model, [Piece(ids, 1, "text"), Piece(ids, 130, "text")])
    assert len(whole.means) == 199
    assert whole.means[129:] == pytest.approx(second.means, abs=1e-12)


def two_points(p: float) -> tuple[float, float]:
    """Mean and deviation of log q over two tokens of probabilities p and 1 - p."""
    centre = p * math.log(p) + (1 - p) * math.log(1 - p)
    variance = p * (math.log(p) - centre) ** 2 + (1 - p) * (math.log(1 - p) - centre) ** 2
    return centre, math.sqrt(variance)


@pytest.mark.parametrize("p", [0.6, 0.75, 0.9, 0.999])
def test_min_k_plus_plus_of_two_tokens(p: float) -> None:
    """Of two tokens, the likelier stands at sqrt((1-p)/p), the other at -sqrt(p/(1-p))."""
    centre, deviation = two_points(p)
    likely, unlikely = math.sqrt((1 - p) / p), -math.sqrt(p / (1 - p))

    def score(probabilities: list[float], share: float) -> float:
        log_probs, count = list(map(math.log, probabilities)), len(probabilities)
        return min_k_plus_plus(TokenScores(log_probs, [centre] * count, [deviation] * count), share)

    assert score([p], 0.2) == pytest.approx(-likely, rel=1e-9)
    assert score([1 - p], 0.2) == pytest.approx(-unlikely, rel=1e-9)
    assert score([p, 1 - p], 1) == pytest.approx(-(likely + unlikely) / 2, rel=1e-9)
    assert score([p, 1 - p], 0.5) == pytest.approx(-unlikely, rel=1e-9)


@pytest.mark.parametrize("vocabulary", [2, 300, 128_256])
def test_min_k_plus_plus_of_uniform_distributions_is_0(vocabulary: int) -> None:
    log_probs = [-math.log(vocabulary)] * 5
    assert min_k_plus_plus(TokenScores(log_probs, log_probs, [0.0] * 5), 0.4) == 0
    summed = float(np.full(vocabulary, 1 / vocabulary) @ np.full(vocabulary, log_probs[0]))
    assert min_k_plus_plus(TokenScores(log_probs, [summed] * 5, [1e-16] * 5), 0.4) == 0


@settings(deadline=None)
@given(st.lists(st.floats(-20, 0), min_size=1, max_size=30), st.floats(0.01, 1))
def test_min_k_plus_plus_with_mean_0_and_deviation_1_is_min_k(log_probs: list[float], share: float) -> None:
    ones, zeros = [1.0] * len(log_probs), [0.0] * len(log_probs)
    found = min_k_plus_plus(TokenScores(log_probs, zeros, ones), share)
    assert found == pytest.approx(min_k_score(log_probs, share), abs=1e-9)


def test_scores_by_hand() -> None:
    assert relative_conditional(3.0, 2.0) == -1.5
    with pytest.raises(ValueError, match="the loss of a text is 0"):
        relative_conditional(1.0, 0.0)


@pytest.mark.parametrize(
    "tokenizer", [byte_level(LLAMA3_TEMPLATE), byte_level(adds_bos=False), sentencepiece(ends_with_eos=True)]
)
def test_the_same_tokens_are_scored_behind_a_prefix(tokenizer: Any) -> None:
    alone, behind = (
        text_piece(tokenizer, "Who wrote it"),
        behind_prefix(tokenizer, ["it", "Who it"], "Who wrote it"),
    )
    assert behind.ids[behind.start :] == alone.ids[alone.start :]
    text = tokenizer.decode(behind.ids, skip_special_tokens=True)
    assert text.split() == ["it", "Who", "it", "Who", "wrote", "it"]
    assert text.count("\n\n") == 2
    assert sum(token == tokenizer.bos_token_id for token in behind.ids) <= 1
    assert behind.text == "Who wrote it"


def of_sets(odds: list[float], size: int) -> float:
    """The AUC of the texts from number `size` on above the others."""
    return auc(np.array(odds[:size]), np.array(odds[size:]))


def test_words_alone() -> None:
    """Sets of other words are told apart, and sets of the same words are not."""
    apart = text_only([f"magic castle {n}" for n in range(20)], [f"river stone {n}" for n in range(20)])
    assert of_sets(apart, 20) == 1
    generator = np.random.default_rng(0)
    drawn = [" ".join(generator.choice(list("abcdefgh"), 6)) for _ in range(240)]
    assert of_sets(text_only(drawn[:120], drawn[120:]), 120) == pytest.approx(0.5, abs=0.12)
    # A word that one text alone has decides nothing.
    found = text_only([*["same words here"] * 10, "odd odd"], [*["same words here"] * 10, "odd"])
    assert found[0] == pytest.approx(found[11], abs=1e-9)


def declared(name: str) -> Attack:
    return next(attack for attack in membership.ATTACKS if attack.name == name)


def material(folder: Path, context: int | None = None, **texts: list[str]) -> Material:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return Material((), (), (), lambda probe: 0, lambda pairs: [], tokenizer, context, texts=texts)


def measured(name: str, models: Models, given: Material, budget: str = "quick") -> Any:
    attack = declared(name)
    assert attack.measure is not None
    return made_material.scores(attack.measure(models, given, attack.options(budget)))


def test_prefixes_are_as_long_as_the_context_allows(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    longest = max(len(text_piece(tokenizer, text).ids) for text in MEMBERS + OTHERS)
    for context, first in ((longest * 3 + 9, 2), (longest, None)):
        given = material(folder, context, forget=MEMBERS, retain=OTHERS)
        found = measured("membership", Models(plain_model(folder)), given)
        assert next(iter(found.get(("relative_conditional", "others"), {})), None) == first
