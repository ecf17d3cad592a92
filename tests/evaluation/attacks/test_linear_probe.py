"""The linear probe: its regression against scipy, planted truth, and chance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from transformers import AutoTokenizer

from recipe.rerule.evaluation.attacks.facts import (
    FactQuestion,
    same_kind_answers,
    swapped_answers,
)
from recipe.rerule.evaluation.attacks.linear_probe import Statements, placements, probe, statements
from recipe.rerule.evaluation.attacks.logistic import fit
from recipe.rerule.evaluation.engine.requests import PromptText
from recipe.rerule.evaluation.metrics import auc
from tests.evaluation.attacks import made_material
from tests.evaluation.attacks.made_pairs import near
from tests.unlearning.made import put_model


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("rows", "width"), [(40, 3), (20, 60)])
def test_logistic_regression_against_scipy(rows: int, width: int) -> None:
    """Also with more features than rows, of unequal sizes, one of which does not vary."""
    features = drawn(rows, width) * torch.logspace(-3, 3, width)
    features[:, 1] = 7.0
    labels = (torch.arange(rows) % 3 == 0).long()
    found = fit(features, labels, penalty=2.0)
    given = features.double().numpy()
    scales = given.std(axis=0)
    scales[1] = 1
    given, signs = (given - given.mean(axis=0)) / scales, 2.0 * labels.numpy() - 1

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        odds = signs * (given @ point[:-1] + point[-1])
        slope = -signs / (1 + np.exp(odds))
        gradient = np.append(given.T @ slope + 2.0 * point[:-1], slope.sum())
        return float(np.logaddexp(0, -odds).sum() + np.square(point[:-1]).sum()), gradient

    best = minimize(loss, np.zeros(width + 1), jac=True, method="BFGS", options={"gtol": 1e-10})
    np.testing.assert_allclose(found.weights.numpy(), best.x[:-1], atol=1e-6)
    assert float(found.bias) == pytest.approx(best.x[-1], abs=1e-6)
    np.testing.assert_allclose(found.scores(features).numpy(), given @ best.x[:-1] + best.x[-1], atol=1e-5)


def planted(count: int, strength: float, layer: int, seed: int, layers: int = 3) -> Statements:
    """States of some layers; behind one of them, true statements are apart in a direction that all share."""
    true, swapped = drawn(count, layers, 8, seed=seed), drawn(count, layers, 8, seed=seed + 1)
    true[:, layer, 0] += strength
    return Statements(true, swapped, tuple(n // 2 for n in range(count)))


def test_truth_that_was_planted_is_found_at_its_layer() -> None:
    found = probe(planted(40, 5.0, 1, 0), planted(30, 5.0, 1, 10), seed=0)
    assert found.layer == 1
    assert found.retain_auc > 0.95
    assert mean(found.forget) > 0.95
    assert 0.1 < mean(found.shuffled) < 0.9
    erased = probe(planted(40, 5.0, 1, 0), planted(30, 0.0, 1, 10), seed=0)
    assert erased.layer == 1
    assert erased.retain_auc == found.retain_auc
    assert 0.3 < mean(erased.forget) < 0.7


def test_chance_without_truth_and_with_shuffled_labels() -> None:
    """Over 20 draws, the mean is within 3 of its standard errors of 0.5."""
    nothing, shuffled = (
        [
            probe(planted(20, strength, 0, seed, 1), planted(20, strength, 0, seed + 100, 1), seed)
            for seed in range(20)
        ]
        for strength in (0.0, 5.0)
    )
    for values in ([mean(one.forget) for one in nothing], [mean(one.shuffled) for one in shuffled]):
        assert abs(np.mean(values) - 0.5) < 3 * np.std(values) / np.sqrt(20)
    assert np.mean([mean(one.forget) for one in shuffled]) > 0.95


def asked(kinds: str, answers: Sequence[str]) -> list[FactQuestion]:
    return [
        FactQuestion(
            made_material.probe(n), kind, PromptText(({"role": "user", "content": f"Who{n}"},)), answer
        )
        for n, (kind, answer) in enumerate(zip(kinds, answers, strict=True))
    ]


@pytest.mark.parametrize("seed", range(5))
def test_swapped_answers_are_of_the_same_kind_and_stay_in_their_group(seed: int) -> None:
    given = asked("xxxxxyyyyxx", "aabbcdefgad")
    found = swapped_answers(given, seed)
    assert all(one.answer != swap for one, (swap, _) in zip(given, found, strict=True))
    groups: dict[Any, list[int]] = {}
    for place, (_, group) in enumerate(found):
        groups.setdefault(group, []).append(place)
    assert sorted(map(len, groups.values())) == [2, 2, 2, 2, 3]
    for places in groups.values():
        assert len({given[place].kind for place in places}) == 1
        assert sorted(found[n][0] for n in places) == sorted(given[n].answer for n in places)
    assert swapped_answers(given, seed) == found
    assert len({tuple(answer for answer, _ in swapped_answers(given, n)) for n in range(20)}) > 1


def test_a_probe_that_only_knows_answers_is_at_chance() -> None:
    """Of states that hold nothing but the answer, both facts of a pair have the same two; were they in
    different folds, each would be taken for what the other one's is."""
    questions = asked("x" * 40, [f"answer {n}" for n in range(40)])
    states = {one.answer: drawn(1, 48, seed=one.probe.index) for one in questions}
    swaps = swapped_answers(questions, 0)
    true = torch.stack([states[one.answer] for one in questions])
    swapped = torch.stack([states[answer] for answer, _ in swaps])
    together = Statements(true, swapped, tuple(group for _, group in swaps))
    assert probe(together, together, 0).retain_auc == 0.5
    apart = Statements(true, swapped, tuple(range(40)))
    assert probe(apart, apart, 0).retain_auc < 0.2


def test_answers_of_the_same_kind() -> None:
    found = same_kind_answers(asked("xxyxy", "abcac"), asked("xyy", "fed"), seed=0)
    assert [one[0] for one in found] == list("abcac")
    assert [sorted(one[1:]) for one in found] == [list(rest) for rest in ("bf", "af", "de", "bf", "de")]
    assert found == same_kind_answers(asked("xxyxy", "abcac"), asked("xyy", "fed"), seed=0)
    with pytest.raises(ValueError, match=r"kind 'x' have too few .* 3 facts, 2 answers"):
        swapped_answers(asked("xxx", "aab"), 0)


def test_statements_of_a_model(tmp_path: Path) -> None:
    """States of the last answer token; a model that was told nothing is at chance of either sign."""
    put_model(tmp_path / "model")
    model, tokenizer = near(tmp_path / "model", 0), AutoTokenizer.from_pretrained(tmp_path / "model")
    given = asked("xxxx", "abcd")
    found = statements(model, tokenizer, given, seed=0)
    assert found.true.shape == (4, 2, 32)
    assert len(set(found.groups)) == 2
    swapped = swapped_answers(given, 0)
    for place, (one, (swap, _)) in enumerate(zip(given, swapped, strict=True)):
        for tensor, text in ((found.true, one.answer), (found.swapped, swap)):
            turn = [*one.prompt.messages, {"role": "assistant", "content": text}]
            ids = tokenizer.apply_chat_template(turn, return_dict=False)
            last = max(n for n, token in enumerate(ids) if tokenizer.decode([token]) == text)
            kept = model(torch.tensor([ids[: last + 1]]), output_hidden_states=True).hidden_states
            torch.testing.assert_close(tensor[place, 0], kept[1][0, -1], rtol=0, atol=1e-6)
    assert 0 <= mean(probe(found, found, 0).forget) <= 1
    one = Statements(found.true[:1], found.swapped[:1], (0,))
    with pytest.raises(ValueError, match=r"needs at least 4 facts to retain .* there are 1 and 1"):
        probe(one, one, 0)


def test_the_parts_of_the_facts_are_the_auc() -> None:
    true, swapped = drawn(30).round(decimals=1), drawn(30, seed=1).round(decimals=1) - 0.5
    parts = placements(true, swapped)
    assert np.mean(parts) == pytest.approx(auc(swapped.numpy(), true.numpy()), abs=1e-12)
    assert placements(torch.tensor([3.0, 1.0]), torch.tensor([0.0, 1.0])) == (1.0, 0.75)
