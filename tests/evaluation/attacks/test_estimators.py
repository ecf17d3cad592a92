"""The estimators against values worked out by hand, brute force over all subsets, and their properties."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, pairwise
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recipe.rerule.evaluation.attacks.estimators import (
    exact_memorization,
    expected_max,
    extraction_strength,
    leak_at_k,
    min_k_plus_plus,
    round_to_nearest,
)
from recipe.rerule.evaluation.metrics import auc, min_k_score

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=9)
RANKS = st.lists(st.integers(1, 4), min_size=1, max_size=30)
BITS = st.integers(2, 8)
DTYPES = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])


@st.composite
def matrices(draw: st.DrawFn) -> Tensor:
    rows, columns, seed = draw(st.integers(1, 4)), draw(st.integers(1, 40)), draw(st.integers(0, 10**6))
    scale = 10.0 ** draw(st.integers(-3, 3))
    made = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * scale
    return made.to(draw(DTYPES))


# Samples


def test_expected_max_by_hand() -> None:
    """Of .1, .4, .9 the pairs have the maxima .4, .9, .9."""
    assert expected_max([0.9, 0.1, 0.4], 2) == pytest.approx(2.2 / 3, abs=1e-15)
    assert expected_max([1, 0, 0, 0], 2) == pytest.approx(0.5, abs=1e-15)


@given(SCORES, st.data())
def test_expected_max_is_the_mean_over_all_subsets(scores: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    assert expected_max(scores, k) == pytest.approx(mean(map(max, combinations(scores, k))), abs=1e-12)


@given(SCORES)
def test_expected_max_goes_from_the_mean_to_the_maximum(scores: list[float]) -> None:
    found = [expected_max(scores, k) for k in range(1, len(scores) + 1)]
    assert found[0] == pytest.approx(math.fsum(scores) / len(scores), abs=1e-12)
    assert found[-1] == max(scores)
    assert all(later >= earlier - 1e-12 for earlier, later in pairwise(found))


@given(SCORES, st.data())
def test_expected_max_does_not_depend_on_the_order(scores: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    assert expected_max(data.draw(st.permutations(scores)), k) == expected_max(scores, k)


def test_expected_max_of_many_samples_neither_overflows_nor_loses_weight() -> None:
    for k in (1, 64, 500, 1000):
        assert expected_max([0.25] * 1000, k) == pytest.approx(0.25, abs=1e-12)


def test_leak_at_k_by_hand() -> None:
    """7 answers, 2 leak, 3 are drawn: 1 - C(5, 3) / C(7, 3) = 5/7."""
    assert leak_at_k(2, 7, 3) == 5 / 7
    assert leak_at_k(1, 64, 16) == 0.25


@pytest.mark.parametrize("samples", range(1, 8))
def test_leak_at_k_is_the_share_of_subsets_with_a_leak(samples: int) -> None:
    for leaks in range(samples + 1):
        answers = [True] * leaks + [False] * (samples - leaks)
        for k in range(1, samples + 1):
            subsets = [any(subset) for subset in combinations(answers, k)]
            assert leak_at_k(leaks, samples, k) == pytest.approx(mean(subsets), abs=1e-15)


@given(st.integers(1, 300), st.data())
def test_leak_at_k_is_the_expected_maximum_of_leaks(samples: int, data: st.DataObject) -> None:
    leaks, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    scores = [1.0] * leaks + [0.0] * (samples - leaks)
    found = leak_at_k(leaks, samples, k)
    assert found == pytest.approx(expected_max(scores, k), abs=1e-12)
    assert leaks or found == 0
    assert found == 1 or leaks + k <= samples


def test_leak_at_k_is_unbiased_and_the_plug_in_is_not() -> None:
    """Over all outcomes of 7 answers that leak with p = .3, weighed by their probability."""
    n, k, p = 7, 3, 0.3
    outcomes = {c: math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)}
    truth = 1 - (1 - p) ** k
    assert sum(w * leak_at_k(c, n, k) for c, w in outcomes.items()) == pytest.approx(truth, abs=1e-12)
    assert sum(w * (1 - (1 - c / n) ** k) for c, w in outcomes.items()) < truth - 0.03


# Ranks


@pytest.mark.parametrize(
    ("ranks", "defined", "open_unlearning"),
    [
        ([1, 1, 1, 1, 1], 1.0, 1.0),
        ([2, 3, 9, 2, 7], 0.0, 0.2),
        ([2, 2, 2, 2, 1], 0.2, 0.2),
        ([2, 1, 1, 1, 1], 0.8, 0.8),
        ([1, 1, 2, 1, 1], 0.4, 0.4),
        ([1, 1, 1, 1, 2], 0.0, 0.2),
        ([1], 1.0, 1.0),
        ([2], 0.0, 1.0),
    ],
)
def test_extraction_strength_by_hand(ranks: list[int], defined: float, open_unlearning: float) -> None:
    assert extraction_strength(ranks) == defined
    assert extraction_strength(ranks, "open_unlearning") == open_unlearning


@given(RANKS)
def test_extraction_strength_is_one_minus_the_shortest_prefix(ranks: list[int]) -> None:
    length = len(ranks)
    by_definition = min(k for k in range(length + 1) if all(rank == 1 for rank in ranks[k:]))
    assert extraction_strength(ranks) == pytest.approx(1 - by_definition / length, abs=1e-15)
    # open-unlearning looks for the prefix among those that leave a token.
    looked_at = (k for k in range(length) if all(rank == 1 for rank in ranks[k:]))
    by_its_code = 1 - next(looked_at, length - 1) / length
    assert extraction_strength(ranks, "open_unlearning") == pytest.approx(by_its_code, abs=1e-15)
    assert extraction_strength(ranks) <= exact_memorization(ranks)


def test_exact_memorization_by_hand() -> None:
    assert exact_memorization([1, 4, 1, 1]) == 0.75
    assert exact_memorization([2, 2]) == 0
    assert exact_memorization((1,)) == 1


@given(RANKS)
def test_only_whether_a_rank_is_1_counts(ranks: list[int]) -> None:
    larger = [rank if rank == 1 else rank + 90 for rank in ranks]
    assert exact_memorization(larger) == exact_memorization(ranks)
    assert extraction_strength(larger) == extraction_strength(ranks)


# Min-K%++


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
    assert min_k_plus_plus([math.log(p)], [centre], [deviation], 0.2) == pytest.approx(-likely, rel=1e-9)
    assert min_k_plus_plus([math.log(1 - p)], [centre], [deviation], 0.2) == pytest.approx(
        -unlikely, rel=1e-9
    )
    both = min_k_plus_plus([math.log(p), math.log(1 - p)], [centre] * 2, [deviation] * 2, 1)
    assert both == pytest.approx(-(likely + unlikely) / 2, rel=1e-9)
    lowest = min_k_plus_plus([math.log(p), math.log(1 - p)], [centre] * 2, [deviation] * 2, 0.5)
    assert lowest == pytest.approx(-unlikely, rel=1e-9)


@pytest.mark.parametrize("vocabulary", [2, 300, 128_256])
def test_min_k_plus_plus_of_uniform_distributions_is_0(vocabulary: int) -> None:
    log_probs = [-math.log(vocabulary)] * 5
    assert min_k_plus_plus(log_probs, log_probs, [0.0] * 5, 0.4) == 0
    summed = float(np.full(vocabulary, 1 / vocabulary) @ np.full(vocabulary, log_probs[0]))
    assert min_k_plus_plus(log_probs, [summed] * 5, [1e-16] * 5, 0.4) == 0


@given(st.lists(st.floats(-20, 0), min_size=0, max_size=30), st.floats(0.01, 1))
def test_min_k_plus_plus_with_mean_0_and_deviation_1_is_min_k(log_probs: list[float], share: float) -> None:
    ones, zeros = [1.0] * len(log_probs), [0.0] * len(log_probs)
    found = min_k_plus_plus(log_probs, zeros, ones, share)
    assert found == pytest.approx(min_k_score(log_probs, share), abs=1e-9)


def test_chance_of_min_k_plus_plus() -> None:
    """Texts of one kind on both sides have an AUC near .5; a text with more likely tokens scores lower."""
    generator = np.random.default_rng(0)
    drawn = generator.normal(size=(2, 400, 20))
    members, others = (
        np.array([min_k_plus_plus(text, [0.0] * 20, [1.0] * 20, 0.4) for text in texts.tolist()])
        for texts in drawn
    )
    assert auc(members, others) == pytest.approx(0.5, abs=0.06)
    assert auc(members, members) == 0.5
    known = np.array([min_k_plus_plus(text, [-1.0] * 20, [1.0] * 20, 0.4) for text in drawn[0].tolist()])
    assert auc(known, others) > 0.9


# Rounding


def test_round_to_nearest_by_hand() -> None:
    """4 bits: 7 steps on each side. The first group has step 1, the second 0.5 and the third is zeros."""
    weights = torch.tensor([[7.0, 2.4, -2.6, 2.5, 3.5, -3.5, 0.2, 0.3, 0.0, 0.0]])
    expected = [[7.0, 2.0, -3.0, 2.0, 3.5, -3.5, 0.0, 0.5, 0.0, 0.0]]
    assert round_to_nearest(weights, 4, 4).tolist() == expected
    assert round_to_nearest(torch.tensor([4.0, -1.9, 2.1]), 2, 3).tolist() == [4.0, 0.0, 4.0]


def test_a_last_group_that_is_short_has_its_own_step() -> None:
    weights = torch.tensor([[7.0, 2.4, 0.7, 0.24]])
    torch.testing.assert_close(round_to_nearest(weights, 4, 2), torch.tensor([[7.0, 2.0, 0.7, 0.2]]))
    torch.testing.assert_close(round_to_nearest(weights, 4, 3), torch.tensor([[7.0, 2.0, 1.0, 0.24]]))
    assert torch.equal(round_to_nearest(weights, 4, 9), round_to_nearest(weights, 4, 4))


@settings(deadline=None)
@given(matrices(), BITS, st.integers(1, 50))
def test_rounding_properties(weights: Tensor, bits: int, group: int) -> None:
    rounded, levels = round_to_nearest(weights, bits, group), 2 ** (bits - 1) - 1
    assert (rounded.dtype, rounded.shape) == (weights.dtype, weights.shape)
    assert torch.equal(round_to_nearest(rounded, bits, group), rounded)
    assert torch.equal(round_to_nearest(-weights, bits, group), -rounded)
    for first in range(0, weights.shape[1], group):
        before, after = weights[:, first : first + group].double(), rounded[:, first : first + group]
        step = before.abs().amax(1, keepdim=True) / levels
        cast = torch.finfo(weights.dtype).eps * before.abs().amax(1, keepdim=True)
        assert bool(((after.double() - before).abs() <= step / 2 + cast).all())
        assert torch.equal(after.double().abs().amax(1), before.abs().amax(1))
        assert all(len(row.unique()) <= 2**bits for row in after)


@settings(deadline=None)
@given(matrices(), BITS, st.integers(1, 50), st.integers(-3, 3))
def test_scaling_rows_by_powers_of_two_commutes(weights: Tensor, bits: int, group: int, power: int) -> None:
    weights = weights.float()
    scales = 2.0 ** (power + torch.arange(len(weights)))[:, None]
    found = round_to_nearest(weights * scales, bits, group)
    assert torch.equal(found, round_to_nearest(weights, bits, group) * scales)


def test_small_updates_are_rounded_away() -> None:
    """At the same step, weights in the same cells give the original's numbers; this is what 4 bits undo."""
    generator = torch.Generator().manual_seed(0)
    original = torch.randn(64, 96, generator=generator).clamp(-3.9, 3.9)
    original[:, 0] = 4.0  # holds the step of every row, and is not updated
    step = 4.0 / 7
    distance = (original / step - (original / step).round()).abs()
    update = 0.02 * step * torch.randn(64, 96, generator=generator).clamp(-1, 1)
    update[:, 0] = 0
    update[distance > 0.47] = 0
    unlearned = original + update
    assert not torch.equal(unlearned, original)
    assert torch.equal(round_to_nearest(unlearned, 4, 96), round_to_nearest(original, 4, 96))
    assert not torch.equal(round_to_nearest(unlearned, 8, 96), round_to_nearest(original, 8, 96))


def test_the_share_of_codes_that_change_is_predicted() -> None:
    """For small updates it is the mean size of the update over the step."""
    generator = torch.Generator().manual_seed(1)
    original = torch.rand(400, 100, generator=generator) * 1.8 - 0.9
    original[:, 0] = 1.0
    step = 1 / 7
    update = 0.02 * step * torch.randn(400, 100, generator=generator)
    update[:, 0] = 0
    rounded = [round_to_nearest(weights, 4, 100) for weights in (original, original + update)]
    changed = (rounded[0] != rounded[1]).double().mean().item()
    assert changed == pytest.approx(update.abs().mean().item() / step, rel=0.15)


def test_arrays_are_rounded_too() -> None:
    weights = np.array([[7.0, 2.4]], dtype=np.float32)
    found = round_to_nearest(weights, 4, 2)
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.tolist()) == (np.dtype("float32"), [[7.0, 2.0]])
    assert weights.tolist()[0][0] == 7.0


ONES = torch.ones(2, 2)
REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (expected_max, ([0.1, 0.2], 3), "k is 3; with 2 samples"),
    (expected_max, ([0.1], 0), "k is 0"),
    (expected_max, ([], 1), "k is 1; with 0 samples"),
    (expected_max, ([0.1, math.nan], 1), "score 1 is nan"),
    (leak_at_k, (1, 3, 4), "k is 4; with 3 samples"),
    (leak_at_k, (1, 3, 0), "k is 0"),
    (leak_at_k, (4, 3, 1), "leaks is 4"),
    (leak_at_k, (-1, 3, 1), "leaks is -1"),
    (extraction_strength, ([],), "no ranks"),
    (extraction_strength, ([0, 1],), "a rank is 0"),
    (extraction_strength, ([1], "carlini"), "convention is 'carlini'"),
    (exact_memorization, ([],), "no ranks"),
    (exact_memorization, ([0],), "a rank is 0"),
    (min_k_plus_plus, ([-1.0], [], [1.0], 0.4), "1 log_probs, 0 means and 1 deviations"),
    (min_k_plus_plus, ([-1.0], [0.0], [1.0], 0.0), "share is 0.0"),
    (min_k_plus_plus, ([-1.0], [0.0], [1.0], 1.5), "share is 1.5"),
    (min_k_plus_plus, ([-math.inf], [0.0], [1.0], 0.4), "log_prob 0 is -inf"),
    (min_k_plus_plus, ([-1.0], [math.nan], [1.0], 0.4), "mean 0 is nan"),
    (min_k_plus_plus, ([-1.0], [-2.0], [0.0], 0.4), "deviation is 0.0"),
    (round_to_nearest, (ONES, 1, 2), "bits is 1"),
    (round_to_nearest, (ONES, 9, 2), "bits is 9"),
    (round_to_nearest, (ONES, 4, 0), "group_size is 0"),
    (round_to_nearest, (ONES.long(), 4, 2), "dtype torch.int64"),
    (round_to_nearest, (ONES[0, 0], 4, 2), "0 axes"),
    (round_to_nearest, (ONES * math.nan, 4, 2), "NaN or infinity"),
]


@pytest.mark.parametrize(("function", "given", "message"), REFUSED)
def test_what_is_refused(function: Callable[..., Any], given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(*given)
