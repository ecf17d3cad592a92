from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.draws import spread
from data_prep.prompts import Prompt
from tests.data_prep.made_prompts import forget_prompt, retain_prompt

KINDS = [("forget", "qa"), ("forget", "fb"), ("forget", "aa"), ("retain", "qa"), ("retain", "fb")]


def made(kinds: list[tuple[str, str]]) -> list[Prompt]:
    return [
        (forget_prompt if side == "forget" else retain_prompt)(index, f"Question {index}?", mode=mode)
        for index, (side, mode) in enumerate(kinds)
    ]


@settings(deadline=None)
@given(st.lists(st.sampled_from(KINDS), max_size=40), st.integers(0, 50), st.integers())
def test_a_spread_is_as_even_as_its_kinds_allow(kinds: list[tuple[str, str]], count: int, seed: int) -> None:
    prompts = made(kinds)
    drawn = spread(prompts, count, random.Random(seed))
    assert len(drawn) == min(count, len(prompts))
    indices = [prompt.index for prompt in drawn]
    assert indices == sorted(set(indices))
    there, taken = Counter(kinds), Counter((prompt.side, prompt.mode) for prompt in drawn)
    most = max(taken.values(), default=0)
    for kind in there:
        assert taken[kind] in (most, most - 1) or taken[kind] == there[kind]


def test_the_seed_decides() -> None:
    prompts = made(KINDS * 20)
    drawn = [spread(prompts, 10, random.Random(seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_every_prompt_of_a_kind_can_be_drawn() -> None:
    prompts = made([("forget", "qa")] * 5)
    counts = Counter(spread(prompts, 1, random.Random(seed))[0].index for seed in range(1000))
    assert set(counts) == set(range(5))
    assert all(130 < count < 270 for count in counts.values())  # 200 expected, standard deviation 12.6
