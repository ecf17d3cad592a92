from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import ReplayConfig, RolloutGroup
from recipe.rerule.replay.selection import (
    AllAdmission,
    BernoulliAdmission,
    HardAdmission,
    RandomAdmission,
    SignalAdmission,
    build_admission,
)
from tests.replay.groups import make_group

CHI_SQUARE_9_DEGREES = 27.88  # passed by chance once in a thousand seeds


def of_mean(*means: float, signal: Sequence[bool] | None = None) -> list[RolloutGroup]:
    """Groups with these means; those without signal have no advantage at all."""
    signals = signal or [True] * len(means)
    return [
        make_group(index, rewards=[mean, mean], advantages=[1.0, -1.0] if has else [0.0, 0.0])
        for index, (mean, has) in enumerate(zip(means, signals, strict=True))
    ]


def numbers(groups: Sequence[RolloutGroup]) -> list[int]:
    return [group.prompt_index for group in groups]


def test_hard_stores_the_groups_below_the_threshold_in_order() -> None:
    offered = of_mean(0.7, 0.1, 0.6, 0.5, 1.0, 0.0)
    assert numbers(HardAdmission().admit(offered, 0.6)) == [1, 3, 5]
    assert HardAdmission().admit(offered, 0.0) == []


def test_all_stores_every_group_in_a_list_of_its_own() -> None:
    offered = of_mean(0.0, 1.0)
    admitted = AllAdmission().admit(offered, 0.6)
    assert admitted == offered
    assert admitted is not offered


@settings(deadline=None)
@given(
    steps=st.lists(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=7), max_size=8),
    quarters=st.integers(0, 4),
    require_signal=st.booleans(),
    seed=st.integers(),
)
def test_random_stores_as_many_as_the_hard_rule_at_every_step(
    steps: list[list[tuple[int, bool]]], quarters: int, require_signal: bool, seed: int
) -> None:
    rules = {
        name: build_admission(
            ReplayConfig(admission=name, require_signal=require_signal),  # type: ignore[arg-type]
            random.Random(seed),
        )
        for name in ("hard", "random")
    }
    for step in steps:
        offered = of_mean(*(mean / 4 for mean, _ in step), signal=[has for _, has in step])
        hard, chosen = (rules[name].admit(offered, quarters / 4) for name in ("hard", "random"))
        wanted = sum(mean < quarters and (has or not require_signal) for mean, has in step)
        assert len(hard) == len(chosen) == wanted
        assert numbers(chosen) == sorted(set(numbers(chosen)))
        assert not require_signal or all(group.has_signal for group in chosen)


def chi_square(counts: Counter[tuple[int, ...]], outcomes: list[tuple[int, ...]], draws: int) -> float:
    expected = draws / len(outcomes)
    assert set(counts) <= set(outcomes)
    return sum((counts[outcome] - expected) ** 2 / expected for outcome in outcomes)


def test_every_random_subset_is_equally_likely_whatever_the_rewards() -> None:
    offered = of_mean(0.0, 1.0, 0.0, 1.0, 1.0)
    rule, draws = RandomAdmission(random.Random(2)), 5000
    counts = Counter(tuple(numbers(rule.admit(offered, 0.6))) for _ in range(draws))
    subsets = list(itertools.combinations(range(5), 2))
    assert chi_square(counts, subsets, draws) < CHI_SQUARE_9_DEGREES


def test_with_require_signal_random_chooses_among_the_groups_with_signal_only() -> None:
    offered = of_mean(0.0, 0.0, 1.0, 0.0, 1.0, 1.0, signal=[False, True, True, True, True, True])
    rule, draws = SignalAdmission(RandomAdmission(random.Random(3))), 5000
    counts = Counter(tuple(numbers(rule.admit(offered, 0.6))) for _ in range(draws))
    subsets = list(itertools.combinations([1, 2, 3, 4, 5], 2))  # two are hard and have signal
    assert chi_square(counts, subsets, draws) < CHI_SQUARE_9_DEGREES


def test_bernoulli_takes_one_number_a_group_whatever_its_reward() -> None:
    reference, rule = random.Random(3), BernoulliAdmission(0.3, random.Random(3))
    offered = of_mean(*(float(place % 2) for place in range(50)))
    assert numbers(rule.admit(offered, 0.6)) == [place for place in range(50) if reference.random() < 0.3]
    assert rule.rng.getstate() == reference.getstate()


class Constant(random.Random):
    """A generator of one number, over and over."""

    def random(self) -> float:
        return 0.25


def test_bernoulli_stores_what_is_below_the_rate() -> None:
    """random() may be 0, and a rate of 0 stores nothing; so the rate itself is not below it."""
    assert BernoulliAdmission(0.25, Constant()).admit(of_mean(0.0), 0.6) == []
    assert len(BernoulliAdmission(0.26, Constant()).admit(of_mean(0.0), 0.6)) == 1


@pytest.mark.parametrize(("rate", "count"), [(0.0, 0), (1.0, 100)])
def test_bernoulli_at_its_ends(rate: float, count: int) -> None:
    rule = BernoulliAdmission(rate, random.Random(0))
    assert len(rule.admit(of_mean(*[0.5] * 100), 0.6)) == count


def test_signal_filter_needs_both() -> None:
    offered = of_mean(0.5, 0.5, 1.0, 1.0, signal=[True, False, True, False])
    assert numbers(SignalAdmission(HardAdmission()).admit(offered, 0.6)) == [0]
    assert numbers(SignalAdmission(AllAdmission()).admit(offered, 0.6)) == [0, 2]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, SignalAdmission(HardAdmission())),
        ({"require_signal": False}, HardAdmission()),
        ({"admission": "all", "require_signal": False}, AllAdmission()),
        ({"admission": "all"}, SignalAdmission(AllAdmission())),
    ],
)
def test_settings_choose_the_rule(changes: dict, rule: object) -> None:
    assert build_admission(ReplayConfig(**changes), random.Random(0)) == rule


def test_random_rules_get_the_given_generator_and_rate() -> None:
    rng = random.Random(0)
    assert build_admission(ReplayConfig(admission="random", require_signal=False), rng) == RandomAdmission(
        rng
    )
    settings = {"admission": "bernoulli", "admission_rate": 0.2, "require_signal": False}
    chosen = build_admission(ReplayConfig.from_dict(settings), rng)
    assert chosen == BernoulliAdmission(0.2, rng)
