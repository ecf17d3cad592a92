from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import Gate


@pytest.mark.parametrize(("start", "first"), [("after", 16), ("at", 15)])
def test_first_replay_step_with_enough_groups(start: str, first: int) -> None:
    gate = Gate(min_groups=100, warmup_steps=15, start=start)  # type: ignore[arg-type]
    opened = [step for step in range(1, 31) if gate.update(size=100, step=step)]
    assert opened == list(range(first, 31))
    assert not Gate(min_groups=100, warmup_steps=0).update(size=99, step=1000)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 6), max_size=12),
    min_groups=st.integers(1, 6),
    warmup=st.integers(0, 8),
    start=st.sampled_from(["after", "at"]),
)
def test_gate_is_open_once_any_step_so_far_met_both_conditions(
    sizes: list[int], min_groups: int, warmup: int, start: str
) -> None:
    gate = Gate(min_groups, warmup, start)  # type: ignore[arg-type]
    met = [
        size >= min_groups and (step > warmup if start == "after" else step >= warmup)
        for step, size in enumerate(sizes, start=1)
    ]
    opened = [gate.update(size, step) for step, size in enumerate(sizes, start=1)]
    assert opened == [any(met[: i + 1]) for i in range(len(met))]
