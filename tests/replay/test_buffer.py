from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import ReplayBuffer, StoredGroup
from tests.replay.groups import contents, keys, make_group


@settings(deadline=None)
@given(capacity=st.integers(1, 7), count=st.integers(0, 30))
def test_buffer_is_a_capped_fifo(capacity: int, count: int) -> None:
    buffer = ReplayBuffer(capacity)
    model: deque[tuple[int, int]] = deque(maxlen=capacity)
    for index in range(count):
        leaving = [model[0]] if len(model) == capacity else []
        model.append((index, 1))
        evicted = buffer.add(make_group(index))
        assert keys([] if evicted is None else [evicted]) == leaving
        assert len(buffer) == len(model) <= capacity
        assert keys(buffer) == list(model)


def test_equal_looking_groups_are_kept_apart() -> None:
    buffer = ReplayBuffer(3)
    for _ in range(2):
        buffer.add(make_group())
    assert len(buffer) == 2


def test_stored_group_is_a_copy_that_was_never_drawn() -> None:
    buffer = ReplayBuffer(2)
    group = make_group(4)
    before = contents(group)
    buffer.add(group)
    buffer.add(make_group(6))
    group.advantages.zero_()
    assert [stored.reuse_count for stored in buffer] == [0, 0]
    assert contents(next(iter(buffer)).group()) == before


def test_a_rule_says_who_leaves_and_may_turn_the_new_group_away() -> None:
    asked: list[list[tuple[int, int]]] = []

    def last(groups: Sequence[StoredGroup]) -> int:
        asked.append(keys(groups))
        return len(groups) - 1

    buffer = ReplayBuffer(2, last)
    evicted = [buffer.add(make_group(index)) for index in range(3)]
    assert evicted[:2] == [None, None]
    assert keys([one for one in evicted if one is not None]) == [(2, 1)]
    assert keys(buffer) == [(0, 1), (1, 1)]
    assert asked == [[(0, 1), (1, 1), (2, 1)]]


def test_removed_groups_are_returned_and_the_rest_stays_in_order() -> None:
    buffer = ReplayBuffer(6)
    for index in range(6):
        buffer.add(make_group(index))
    assert keys(buffer.remove(lambda stored: stored.prompt_index % 3 == 1)) == [(1, 1), (4, 1)]
    assert keys(buffer) == [(0, 1), (2, 1), (3, 1), (5, 1)]
    assert buffer.remove(lambda stored: stored.prompt_index == 4) == []
    assert len(buffer) == 4


def test_bytes_follow_additions_evictions_and_removals() -> None:
    buffer = ReplayBuffer(2)
    small, large = make_group(1), make_group(2, lengths=[50, 50])
    buffer.add(large)
    buffer.add(small)
    assert buffer.nbytes == small.nbytes + large.nbytes
    buffer.add(small)
    assert buffer.nbytes == 2 * small.nbytes
    buffer.remove(lambda stored: True)
    assert buffer.nbytes == 0


@pytest.mark.parametrize("capacity", [0, -1])
def test_capacity_below_one_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity of a replay buffer is {capacity}; it must be at least 1"):
        ReplayBuffer(capacity)
