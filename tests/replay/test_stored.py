from __future__ import annotations

import dataclasses
import gc
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import Replay, ReplayConfig, RolloutGroup, StoredGroup
from tests.replay.groups import contents, make_group


def test_facts_of_a_group_by_hand() -> None:
    group = make_group(
        7, step=4, rewards=[0.0, 1.0, 1.0], lengths=[2, 1, 1], advantages=[-1.0, 0.5, 0.0], side="retain"
    )
    stored = StoredGroup.of(group, reuse_count=3)
    assert (stored.prompt_index, stored.side, stored.mode, stored.step) == (7, "retain", "qa", 4)
    assert (stored.n, stored.prompt_length, stored.tokens, stored.has_ref) == (3, 3, 4, True)
    assert stored.mean_reward == pytest.approx(2 / 3)
    assert stored.signal == (1 + 1 + 0.5 + 0) / 4
    assert stored.reuse_count == 3
    # 3 prompt tokens, 3 lengths and rewards, 4 response tokens with 4 four-byte planes and a mask.
    assert stored.nbytes == 4 * 3 + 2 * 4 * 3 + 4 * (4 * 4 + 1) == group.nbytes
    assert StoredGroup.of(group).reuse_count == 0


shapes = st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any)


@settings(deadline=None)
@given(lengths=shapes, prompt_length=st.integers(1, 7), with_ref=st.booleans(), index=st.integers(0, 99))
def test_group_comes_back_bit_for_bit(
    lengths: list[int], prompt_length: int, with_ref: bool, index: int
) -> None:
    group = make_group(
        index, lengths=lengths, rewards=[0.25] * len(lengths), prompt_length=prompt_length, with_ref=with_ref
    )
    mask = torch.arange(sum(lengths)) % 3 != 1
    group = dataclasses.replace(group, response_mask=mask)
    back = StoredGroup.of(group).group()
    assert contents(back) == contents(group)
    assert StoredGroup.of(group).nbytes == group.nbytes


def test_neither_source_nor_copies_share_memory_with_it() -> None:
    group = make_group()
    before = contents(group)
    stored = StoredGroup.of(group)
    for plane in [*group.planes().values(), *stored.group().planes().values()]:
        plane.zero_()
    assert contents(stored.group()) == before


def test_staleness_is_the_steps_since_storing() -> None:
    assert [StoredGroup.of(make_group(step=4)).staleness(step) for step in (4, 9)] == [0, 5]


def tofu_like(index: int, step: int, generator: torch.Generator) -> RolloutGroup:
    """8 rollouts of about 30 tokens each and a prompt of about 20."""
    lengths = torch.randint(15, 46, (8,), generator=generator).tolist()
    prompt_length = int(torch.randint(12, 30, (1,), generator=generator))
    rewards = torch.rand(8, generator=generator).tolist()
    return make_group(index, step, rewards, lengths, prompt_length)


def test_full_buffer_costs_at_most_1_2_of_its_tensors() -> None:
    """1,200 groups x 8 rollouts; all the memory Python allocates for the replay, its log aside."""
    generator = torch.Generator().manual_seed(0)
    steps = [[tofu_like(16 * step + i, step, generator) for i in range(16)] for step in range(1, 77)]
    floor = sum(group.nbytes for step in steps for group in step[:16])
    # The first use of numpy.quantile imports modules of 0.8 MB, which are no memory of the buffer.
    Replay(ReplayConfig(admission="all")).offer(steps[0], 1)
    replay = Replay(ReplayConfig(admission="all"))
    gc.collect()
    tracemalloc.start()
    try:
        for step, groups in enumerate(steps, start=1):
            replay.offer(groups, step)
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(replay.buffer) == 1200
    assert replay.buffer.nbytes == pytest.approx(floor * 1200 / (76 * 16), rel=0.02)
    # tracemalloc does not see what torch allocates, so nothing stored may be a tensor.
    assert not any(
        isinstance(getattr(one, name), torch.Tensor) for one in replay.buffer for name in one.__slots__
    )
    assert used <= 1.2 * replay.buffer.nbytes
