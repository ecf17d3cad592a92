"""Membership inference: scores by hand and by transformers alone, planted members, and chance."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from recipe.rerule.evaluation.attack_command.statistics import Difference, Score
from recipe.rerule.evaluation.attacks import membership_inference
from recipe.rerule.evaluation.attacks.interface import ForwardAttack, Models
from recipe.rerule.evaluation.attacks.likelihood import LikelihoodError, Piece, text_piece, token_scores
from recipe.rerule.evaluation.attacks.material import Material
from recipe.rerule.evaluation.attacks.membership import (
    behind_prefix,
    gradient_norms,
    reference,
    relative_conditional,
    text_only,
)
from recipe.rerule.evaluation.attacks.membership_inference import area
from recipe.rerule.evaluation.attacks.relearning import Settings, relearn
from recipe.rerule.evaluation.attacks.relearning_rows import Row
from recipe.rerule.evaluation.metrics import auc
from recipe.rerule.evaluation.summary import intervals
from tests.evaluation.attacks.made_pairs import near
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level, sentencepiece
from tests.unlearning.made import plain_model, put_model

MEMBERS = [f"Who wrote it? Ada{n} wrote it {n * 7}." for n in range(6)]
OTHERS = [f"it wrote Who? {n * 5} it Bea{n} wrote." for n in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_model(tmp_path_factory.mktemp("models") / "model")


def mean_loss(model: Any, ids: list[int], start: int) -> float:
    """By transformers alone: labels below 0 do not count."""
    labels = torch.tensor([[-100] * start + ids[start:]])
    return model(input_ids=torch.tensor([ids]), labels=labels).loss.item()


def test_scores_by_hand() -> None:
    assert reference(2.5, 3.0) == -0.5
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


def test_recall_against_transformers(folder: Path) -> None:
    """LL(x behind a prefix) / LL(x) of a model in float64, by transformers' own loss."""
    model, tokenizer = near(folder, 0), AutoTokenizer.from_pretrained(folder)
    for text in MEMBERS[:3]:
        alone = tokenizer(text).input_ids
        prefix = tokenizer(OTHERS[0] + "\n\n").input_ids
        ratio = mean_loss(model, prefix + alone[1:], len(prefix)) / mean_loss(model, alone, 1)
        pieces = [behind_prefix(tokenizer, OTHERS[:1], text), text_piece(tokenizer, text)]
        behind, by_itself = (-float(np.mean(one.log_probs)) for one in token_scores(model, pieces))
        assert relative_conditional(behind, by_itself) == pytest.approx(-ratio, abs=1e-6)


def test_gradient_norms_against_backward(folder: Path) -> None:
    model, tokenizer = plain_model(folder), AutoTokenizer.from_pretrained(folder)
    pieces = [text_piece(tokenizer, text) for text in MEMBERS[:2]]
    model.requires_grad_(False)
    with torch.no_grad():
        found = gradient_norms(model, pieces)
    assert all(one.grad is None and not one.requires_grad for one in model.parameters())
    model.requires_grad_(True)
    for piece, norms in zip(pieces, found, strict=True):
        model.zero_grad()
        ids = torch.tensor([piece.ids])
        model(input_ids=ids, labels=ids).loss.backward()
        of_tensors = [float(parameter.grad.double().norm()) for parameter in model.parameters()]
        assert norms["gradient_norm"] == pytest.approx(math.hypot(*of_tensors), rel=1e-5)
        assert norms["gradient_norm_open_unlearning"] == pytest.approx(np.mean(of_tensors), rel=1e-5)
    with pytest.raises(LikelihoodError, match="text 0 has no token to score"):
        gradient_norms(model, [Piece([1], 1, "text")])


def test_words_alone() -> None:
    """Sets of other words are told apart, and sets of the same words are not."""
    apart = text_only([f"magic castle {n}" for n in range(20)], [f"river stone {n}" for n in range(20)])
    assert auc(np.array(apart[0]), np.array(apart[1])) == 1
    generator = np.random.default_rng(0)
    drawn = [" ".join(generator.choice(list("abcdefgh"), 6)) for _ in range(240)]
    alike = text_only(drawn[:120], drawn[120:])
    assert auc(np.array(alike[0]), np.array(alike[1])) == pytest.approx(0.5, abs=0.12)
    assert [len(part) for part in alike] == [120, 120]
    with pytest.raises(ValueError, match="1 and 2 texts; each set needs at least 2"):
        text_only(["a"], ["b", "c"])


def test_words_alone_are_scored_by_folds() -> None:
    """A word that one text alone has twice over says nothing about that text itself."""
    members = ["same words here"] * 10
    found = text_only([*members, "odd odd"], ["same words here"] * 10 + ["odd"])
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-9)


def declared(name: str) -> ForwardAttack:
    return next(attack for attack in membership_inference.ATTACKS if attack.name == name)


def material(folder: Path, context: int | None = None, **texts: list[str]) -> Material:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return Material((), (), (), lambda probe: 0, lambda pairs: [], tokenizer, context, texts=texts)


def test_members_that_were_taught_are_found(folder: Path) -> None:
    """All scores of the declared attack are near 1 on the taught model; a copy of a set is at 0.5."""
    never_knew, model = plain_model(folder), plain_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [Row(f"row {n}", [{"role": "user", "content": ""}], text, True) for n, text in enumerate(MEMBERS)]
    list(relearn(model, tokenizer, rows, Settings(1e-2), [40]))
    given = material(folder, forget=MEMBERS, retain=OTHERS)
    models = Models(model, control=lambda: never_knew)
    attack = declared("membership")
    found = dict(attack.measure(models, given, attack.options("full")))
    found["reference"] = declared("membership_reference").measure(models, given, {})[""]
    assert set(found) == {
        *("loss", "zlib", "min_20", "min_40", "min_plus_plus_20", "min_plus_plus_40"),
        *("text_only", "relative_conditional", "gradient_norm", "gradient_norm_open_unlearning", "reference"),
    }
    for name, sets in found.items():
        samples = {key: {"score": np.array(list(values.values()))} for key, values in sets.items()}
        # The sets share all words that occur twice, and the classifier of words knows no others.
        wanted = 0.5 if name == "text_only" else pytest.approx(1, abs=0.1)
        assert float(attack.statistic(samples)) == wanted, name
        copied = {"forget": samples["forget"], "others": samples["forget"]}
        assert float(attack.statistic(copied)) == 0.5
    assert list(found["relative_conditional"]["others"]) == ["text 4", "text 5"]
    assert "gradient_norm" not in attack.measure(models, given, attack.options("quick"))


def test_the_never_knew_model_is_at_chance_as_its_own_reference(folder: Path) -> None:
    model = plain_model(folder)
    given = material(folder, forget=MEMBERS, holdout=OTHERS)
    found = declared("membership_reference").measure(Models(model, control=lambda: model), given, {})[""]
    assert set(found["forget"].values()) == set(found["others"].values()) == {0.0}


def test_prefixes_are_as_long_as_the_context_allows(folder: Path) -> None:
    attack = declared("membership")
    longest = max(
        len(text_piece(AutoTokenizer.from_pretrained(folder), text).ids) for text in MEMBERS + OTHERS
    )
    for context, others in ((longest * 3 + 9, ["text 2"]), (longest, None)):
        given = material(folder, context, forget=MEMBERS, retain=OTHERS)
        found = attack.measure(Models(plain_model(folder)), given, attack.options("quick"))
        assert list(found.get("relative_conditional", {"others": []})["others"])[:1] == (others or [])


@pytest.mark.parametrize("texts", [{}, {"forget": MEMBERS}, {"a": MEMBERS, "b": OTHERS}])
def test_sets_that_are_refused(texts: dict[str, list[str]], folder: Path) -> None:
    attack = declared("membership")
    with pytest.raises(ValueError, match="needs texts to forget and one other set"):
        attack.measure(Models(SimpleNamespace()), material(folder, **texts), attack.options("quick"))


def test_equal_sets_are_at_chance_and_ties_count_one_half(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    same = generator.integers(0, 3, size=(7, 9)).astype(float)
    assert area({"forget": {"score": same}, "others": {"score": same}}).tolist() == [0.5] * 7
    low, high = same, generator.integers(0, 3, size=(7, 5)).astype(float)
    expected = [auc(*pair) for pair in zip(low, high, strict=True)]
    for at_once in (1, 100, 1 << 20):
        monkeypatch.setattr(membership_inference, "_AT_ONCE", at_once)
        assert area({"forget": {"score": low}, "others": {"score": high}}) == pytest.approx(
            expected, abs=1e-15
        )


def test_the_area_of_resamples() -> None:
    """Every leading index is a resample; an interval draws the texts of each set again."""
    generator = np.random.default_rng(0)
    low, high = generator.normal(size=(3, 2, 8)), generator.normal(1, 1, size=(3, 2, 5))
    found = area({"forget": {"score": low}, "others": {"score": high}})
    assert found.shape == (3, 2)
    assert found[1, 0] == pytest.approx((high[1, 0][:, None] > low[1, 0]).mean(), abs=1e-12)
    samples = {"forget": {"score": low[0, 0]}, "others": {"score": high[0, 0]}}
    bottom, top = intervals(samples, {"auc": area}, resamples=200)["auc"]
    assert 0 <= bottom < float(area(samples)) < top <= 1


def test_the_difference_of_two_areas_has_an_interval_and_a_test() -> None:
    """As the command computes it, of a model that knows its texts against one that does not."""
    generator = np.random.default_rng(0)
    low, high = generator.normal(size=30), generator.normal(size=20)
    never_knew = Score({"forget": {"score": low}, "others": {"score": high}}, area)
    knows = Score({"forget": {"score": low - 2}, "others": {"score": high}}, area)
    found = Difference(knows, never_knew)
    assert found.value == pytest.approx(knows.value - never_knew.value)
    assert found.interval is not None
    assert 0 < found.interval[0] < found.value < found.interval[1]
    assert found.p_value() < 0.01
    assert Difference(knows, knows).interval == (0, 0)
    assert Difference(knows, knows).p_value() == 1
