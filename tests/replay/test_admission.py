from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import Replay, ReplayConfig, RolloutGroup
from recipe.rerule.replay.buffer import admitted
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


def stored(groups: list[RolloutGroup], **changes: object) -> list[int]:
    """Prompts whose groups a replay of these settings stores at its first step."""
    replay = Replay(ReplayConfig.from_dict({"threshold_rule": "fixed", "threshold": 0.6, **changes}))
    replay.offer(groups, 1)
    return [key.prompt_index for key in replay.log.stored]


def test_hard_stores_the_groups_below_the_threshold_in_order() -> None:
    offered, rng = of_mean(0.7, 0.1, 0.6, 0.5, 1.0, 0.0), random.Random(0)
    assert numbers(admitted(offered, 0.6, "hard", rng)) == [1, 3, 5]
    assert admitted(offered, 0.0, "hard", rng) == []
    assert rng.getstate() == random.Random(0).getstate()


def test_all_stores_every_group_in_a_list_of_its_own() -> None:
    offered = of_mean(0.0, 1.0)
    found = admitted(offered, 0.6, "all", random.Random(0))
    assert found == offered
    assert found is not offered


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
    shared = {"threshold": quarters / 4, "require_signal": require_signal, "seed": seed}
    for step in steps:
        offered = of_mean(*(mean / 4 for mean, _ in step), signal=[has for _, has in step])
        hard, chosen = (stored(offered, admission=name, **shared) for name in ("hard", "random"))
        wanted = sum(mean < quarters and (has or not require_signal) for mean, has in step)
        assert len(hard) == len(chosen) == wanted
        assert chosen == sorted(set(chosen))
        assert not require_signal or all(offered[place].has_signal for place in chosen)


def chi_square(counts: Counter[tuple[int, ...]], outcomes: list[tuple[int, ...]], draws: int) -> float:
    expected = draws / len(outcomes)
    assert set(counts) <= set(outcomes)
    return sum((counts[outcome] - expected) ** 2 / expected for outcome in outcomes)


def test_every_random_subset_is_equally_likely_whatever_the_rewards() -> None:
    offered, rng, draws = of_mean(0.0, 1.0, 0.0, 1.0, 1.0), random.Random(2), 5000
    counts = Counter(tuple(numbers(admitted(offered, 0.6, "random", rng))) for _ in range(draws))
    subsets = list(itertools.combinations(range(5), 2))
    assert chi_square(counts, subsets, draws) < CHI_SQUARE_9_DEGREES


def test_with_require_signal_random_chooses_among_the_groups_with_signal_only() -> None:
    offered = of_mean(0.0, 0.0, 1.0, 0.0, 1.0, 1.0, signal=[False, True, True, True, True, True])
    draws = 5000
    counts = Counter(tuple(stored(offered, admission="random", seed=seed)) for seed in range(draws))
    subsets = list(itertools.combinations([1, 2, 3, 4, 5], 2))  # two are hard and have signal
    assert chi_square(counts, subsets, draws) < CHI_SQUARE_9_DEGREES


def test_settings_choose_the_rule_and_whether_signal_is_needed() -> None:
    offered = of_mean(0.5, 0.5, 1.0, 1.0, signal=[True, False, True, False])
    assert stored(offered) == [0]
    assert stored(offered, require_signal=False) == [0, 1]
    assert stored(offered, admission="all") == [0, 2]
    assert stored(offered, admission="all", require_signal=False) == [0, 1, 2, 3]
