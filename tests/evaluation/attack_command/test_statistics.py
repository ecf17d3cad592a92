"""Numbers over facts: what is averaged, and when an interval or a share is given."""

from __future__ import annotations

import numpy as np
import pytest

from recipe.rerule.evaluation.attack_command.statistics import Difference, Facts, Score, share
from recipe.rerule.evaluation.attacks.material import FORGET, SCORE, Reading
from recipe.rerule.evaluation.summary import Array, Samples, bootstrap, mean_of
from tests.evaluation.attacks.made_material import material, probe

MEAN = mean_of(SCORE, [FORGET])


def over(values: list[float] | Array) -> Samples:
    return {FORGET: {SCORE: np.asarray(values, dtype=float)}}


def test_probes_of_a_fact_are_averaged_first() -> None:
    """Person 0 has three probes and person 1 one: 0.5 and 1, not 2.5 of 4."""
    facts = Facts(
        material([probe(0), probe(0, "fb"), probe(0, "aa"), probe(1)], [probe(4, section="retain")])
    )
    reading: Reading = {
        FORGET: {0: 1.0, 1: 0.5, 2: 0.0, 10: 1.0},
        "retain": {40: 0.25},
        "own": {"a": 1.0, "b": 0.0},
    }
    (samples,) = facts.samples([reading])
    assert samples[FORGET][SCORE].tolist() == [0.5, 1.0]
    assert samples["own"][SCORE].tolist() == [1.0, 0.0]
    assert (facts.mean(reading[FORGET]), facts.mean(reading["retain"])) == (0.75, 0.25)
    assert facts.mean({}) is None
    assert facts.mean(None) is None


def test_readings_are_put_into_one_order() -> None:
    facts = Facts(material([probe(0), probe(1)]))
    first, second = facts.samples([{FORGET: {0: 1.0, 10: 0.0}}, {FORGET: {10: 0.25, 0: 0.75}}])
    assert first[FORGET][SCORE].tolist() == [1.0, 0.0]
    assert second[FORGET][SCORE].tolist() == [0.75, 0.25]
    with pytest.raises(ValueError, match="other facts of one model than of another"):
        facts.samples([{FORGET: {0: 1.0}}, {FORGET: {10: 1.0}}])


def test_a_difference_of_six_facts() -> None:
    """All six differ one way: of 2^6 exchanges, two are as extreme."""
    found = between([1, 1, 1, 0.5, 1, 1], [0] * 6)
    assert found.value == pytest.approx(5.5 / 6)
    assert found.p_value() == 2 / 64
    assert found.interval is not None
    assert found.interval[0] < 5.5 / 6 < found.interval[1] <= 1
    few = between([1] * 5, [0] * 5)
    assert (few.value, few.interval, few.p_value(), few.a.interval) == (1, None, None, None)
    itself = between([1, 0, 1, 0, 1, 0], [1, 0, 1, 0, 1, 0])
    assert (itself.value, itself.interval, itself.p_value()) == (0, (0, 0), 1)


def between(a: list[float] | Array, b: list[float] | Array) -> Difference:
    return Difference(Score(over(a), MEAN), Score(over(b), MEAN))


def test_a_share_needs_knowledge_that_is_sure() -> None:
    whole, nothing = between([1] * 8, [0] * 8), between([0] * 8, [0] * 8)
    half = between([0.5] * 8, [0] * 8)
    assert share(half, whole) == (0.5, (0.5, 0.5))
    assert share(whole, whole) == (1, (1, 1))
    assert share(nothing, whole) == (0, (0, 0))
    # The original's excess may be 0: a share of it has no meaning.
    assert share(half, between([1, 0, 0, 0, 0, 0, 0, 0], [0] * 8)) is None
    assert share(half, nothing) is None
    generator = np.random.default_rng(3)
    unsure = between(generator.random(8), generator.random(8))
    assert unsure.interval is not None
    assert unsure.interval[0] < 0 < unsure.interval[1]
    assert unsure.draws is not None
    assert unsure.draws.all()
    assert share(half, unsure) is None
    assert share(between([1] * 5, [0] * 5), between([1] * 5, [0] * 5)) is None


def test_the_interval_of_a_share_is_that_of_paired_resamples() -> None:
    generator = np.random.default_rng(0)
    u, o = generator.random((2, 30))
    found = share(between(u, np.zeros(30)), between(o, np.zeros(30)))
    assert found is not None
    draws = [bootstrap(over(values), {"m": MEAN}, 2000, 0)["m"] for values in (u, o)]
    assert found[0] == pytest.approx(u.mean() / o.mean())
    assert found[1] == pytest.approx(tuple(np.quantile(draws[0] / draws[1], [0.025, 0.975])))
    # Unpaired, the same resamples in another order, it would be wider.
    unpaired = np.quantile(draws[0] / draws[1][::-1], [0.025, 0.975])
    assert found[1] != pytest.approx(tuple(unpaired))


def test_the_excess_of_a_second_model_that_never_knew_covers_0() -> None:
    """Of 200 pairs of models of one distribution, about 95 % of the intervals hold 0."""
    generator = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        floor = generator.beta(0.3, 2, 40)  # what can be guessed of each fact, by both
        low, high = between(*(generator.binomial(4, floor) / 4 for _ in range(2))).interval or (1, -1)
        held += low <= 0 <= high
    assert 180 <= held <= 199
