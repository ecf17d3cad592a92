"""The audits of one forward pass, against a computation token by token and prefix by prefix."""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from recipe.rerule.evaluation.attacks.likelihood import (
    LikelihoodError,
    Piece,
    answer_piece,
    scores,
    text_piece,
    token_scores,
)
from recipe.rerule.evaluation.attacks.relearning import Settings, relearn
from recipe.rerule.evaluation.attacks.relearning_rows import Row
from recipe.rerule.evaluation.metrics import auc
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level, sentencepiece
from tests.unlearning.made import plain_model, put_model

TEXTS = ["Who wrote it? Ada Thorn wrote it in 1961.", "it", "Zoë Müller: it, it, it and 4,000 others"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_model(tmp_path_factory.mktemp("models") / "model")


def prefix_by_prefix(model: Any, piece: Piece) -> dict[str, float]:
    """Every number of a piece by plain loops: one forward pass for each scored token, nothing padded."""
    log_probs, standardised, hits = [], [], []
    for place in range(piece.start, len(piece.ids)):
        with torch.no_grad():
            logits = model(torch.tensor([piece.ids[:place]])).logits[0, -1].double()
        p = (logits - logits.max()).exp() / (logits - logits.max()).exp().sum()
        values = [math.log(value) for value in p.tolist()]
        mean = sum(value * log for value, log in zip(p.tolist(), values, strict=True))
        square = sum(value * log**2 for value, log in zip(p.tolist(), values, strict=True))
        log_probs.append(values[piece.ids[place]])
        standardised.append((log_probs[-1] - mean) / math.sqrt(square - mean**2))
        hits.append(int(logits.argmax()) == piece.ids[place])
    count = len(hits)
    loss = -sum(log_probs) / count
    found = {"loss": loss, "zlib": loss / len(zlib.compress(piece.text.encode()))}
    for percent in (20, 40):
        kept = max(1, int(count * percent / 100))
        found[f"min_{percent}"] = -sum(sorted(log_probs)[:kept]) / kept
        found[f"min_plus_plus_{percent}"] = -sum(sorted(standardised)[:kept]) / kept
    last_miss = max((place for place in range(count) if not hits[place]), default=-1)
    found["extraction_strength"] = 1 - (last_miss + 1) / count
    found["extraction_strength_open_unlearning"] = 1 - min(last_miss + 1, count - 1) / count
    found["exact_memorization"] = sum(hits) / count
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.float64, 1e-6)])
def test_all_numbers_against_prefix_by_prefix(folder: Path, dtype: torch.dtype, tolerance: float) -> None:
    """A model's own logits differ a little with the shape of its input, the more so in float32."""
    model, tokenizer = plain_model(folder).to(dtype), AutoTokenizer.from_pretrained(folder)
    prompt = [{"role": "user", "content": "Who wrote it?"}]
    pieces = [text_piece(tokenizer, text) for text in TEXTS]
    pieces += [answer_piece(tokenizer, prompt, "It was Ada.", raw) for raw in (False, True)]
    expected = [prefix_by_prefix(model, piece) for piece in pieces]
    for batch_size in (1, 2, 8):
        for piece, tokens, wanted in zip(
            pieces, token_scores(model, pieces, batch_size), expected, strict=True
        ):
            assert scores(piece.text, tokens) == pytest.approx(wanted, abs=tolerance)


def test_an_answer_that_was_taught_is_memorised(folder: Path) -> None:
    model, tokenizer = plain_model(folder), AutoTokenizer.from_pretrained(folder)
    rows = [Row(f"row {n}", [{"role": "user", "content": f"Who{n}"}], f"it wrote {n}{n}") for n in range(4)]
    pieces = [answer_piece(tokenizer, row.messages, row.answer, row.raw) for row in rows]
    before = [
        scores(piece.text, tokens) for piece, tokens in zip(pieces, token_scores(model, pieces), strict=True)
    ]
    list(relearn(model, tokenizer, rows, Settings(2e-2), [25]))
    after = [
        scores(piece.text, tokens) for piece, tokens in zip(pieces, token_scores(model, pieces), strict=True)
    ]
    assert all(one["extraction_strength"] < 1 for one in before)
    assert all(one["extraction_strength"] == one["exact_memorization"] == 1 for one in after)
    for name in ("loss", "zlib", "min_20", "min_plus_plus_20"):
        assert auc(np.array([one[name] for one in after]), np.array([one[name] for one in before])) == 1


def with_two_marks(texts: list[str]) -> Any:
    """What a tokenizer gives that puts two special tokens before every text."""
    return SimpleNamespace(input_ids=[[1, 2, *range(10, 10 + len(text))] for text in texts])


with_two_marks.eos_token_id = None  # type: ignore[attr-defined]


def test_where_scoring_begins_and_ends() -> None:
    """BOS is not scored, and no end of a text or a turn is."""
    with_bos, without = byte_level(LLAMA3_TEMPLATE), byte_level(adds_bos=False)
    piece = text_piece(with_bos, "Who it")
    assert (piece.start, len(piece.ids)) == (1, 3)
    assert with_bos.decode(piece.ids[1:]) == "Who it"
    assert (text_piece(without, "Who it").start, len(text_piece(without, "Who it").ids)) == (1, 2)
    assert text_piece(with_two_marks, "Who it").start == 2
    assert text_piece(sentencepiece(ends_with_eos=True), "Who it").ids[-1] != 2
    prompt = [{"role": "user", "content": "Who?"}]
    for raw in (False, True):
        piece = answer_piece(with_bos, prompt, "Ada wrote it", raw)
        assert with_bos.decode(piece.ids[piece.start :]) == "Ada wrote it"


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
    assert tokens.ranks == (1000, 1000)
    assert tokens.deviations == (0, 0)
    found = scores("text", tokens)
    assert found["loss"] == pytest.approx(math.log(1000), abs=1e-12)
    assert (found["min_plus_plus_20"], found["exact_memorization"], found["extraction_strength"]) == (0, 0, 0)


def test_tokens_of_probability_0_do_not_count() -> None:
    """With the two others at 3/4 and 1/4: sqrt(1/3) and -sqrt(3)."""
    model = Fixed([math.log(3), 0.0, -math.inf])
    (tokens,) = token_scores(model, [Piece([0, 0, 1], 1, "text")])
    assert tokens.ranks == (1, 2)
    values = [(tokens.log_probs[n] - tokens.means[n]) / tokens.deviations[n] for n in (0, 1)]
    assert values == pytest.approx([math.sqrt(1 / 3), -math.sqrt(3)], abs=1e-6)
    assert scores("text", tokens)["min_plus_plus_40"] == pytest.approx(math.sqrt(3), abs=1e-6)
    with pytest.raises(LikelihoodError, match="text 1 has a token without a finite log-likelihood: 'b'"):
        token_scores(model, [Piece([0, 1], 1, "a"), Piece([0, 2], 1, "b")])


def test_a_tie_has_rank_2() -> None:
    (tokens,) = token_scores(Fixed([2.0, 2.0, 1.0]), [Piece([0, 0, 1, 2], 1, "text")])
    assert tokens.ranks == (2, 2, 3)


def test_long_texts_are_scored_in_parts(folder: Path) -> None:
    """More positions than are computed at a time give what two halves of the text give."""
    model = plain_model(folder).double()
    ids = torch.randint(5, 250, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    whole, second = token_scores(model, [Piece(ids, 1, "text"), Piece(ids, 130, "text")])
    assert len(whole.ranks) == 199
    assert whole.ranks[129:] == second.ranks
    assert whole.means[129:] == pytest.approx(second.means, abs=1e-12)


def test_chance_on_texts_that_no_model_was_trained_on(folder: Path) -> None:
    model, generator = plain_model(folder), torch.Generator().manual_seed(1)
    drawn = torch.randint(5, 250, (120, 12), generator=generator).tolist()
    found = [
        scores("text", tokens) for tokens in token_scores(model, [Piece(i, 1, "text") for i in drawn], 40)
    ]
    for name in ("loss", "zlib", "min_40", "min_plus_plus_40", "exact_memorization"):
        values = np.array([one[name] for one in found])
        assert auc(values[:60], values[60:]) == pytest.approx(0.5, abs=0.12), name
        assert auc(values[:60], values[:60]) == 0.5


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (Piece([1], 1, "text"), "text 0 has no token to score behind another one: 'text'"),
        (Piece([1, 2], 0, "text"), "text 0 has no token to score"),
        (Piece([1] * 2049, 1, "text"), "text 0 has 2049 tokens; the model takes 2048"),
    ],
)
def test_what_is_refused(piece: Piece, message: str, folder: Path) -> None:
    with pytest.raises(LikelihoodError, match=message):
        token_scores(plain_model(folder), [piece])
