from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import Replay, ReplayConfig, ReplayStateError, RolloutGroup, pad_groups
from recipe.rerule.replay.log import Departure, Key
from tests.replay.groups import PAPER_RULES, contents, keys, make_group
from tests.replay.runs import KINDS, buffered, configs, group_of, groups_of, offers, train_step


def small_config(**changes: object) -> ReplayConfig:
    sizes = {"min_groups": 3, "warmup_steps": 2, "capacity": 8, "groups_per_update": 3, "seed": 1}
    return ReplayConfig.from_dict({**PAPER_RULES, **sizes, **changes})


def offer(replay: Replay, step: int, *prompts: int, rewards: tuple[float, ...] = (0.0, 0.5)) -> None:
    replay.offer([make_group(index, step, rewards=rewards) for index in prompts], step)


def test_offer_stores_the_hard_groups_in_order_and_says_what_it_did() -> None:
    replay = Replay(small_config(threshold=0.5, capacity=3))
    rewards = [0.0, 1.0, 0.4, 0.5, 0.1, 0.2]
    groups = [make_group(i, rewards=[r, r]) for i, r in enumerate(rewards)]
    replay.offer(groups, step=1)
    assert keys(replay.buffer) == [(2, 1), (4, 1), (5, 1)]
    log = replay.log
    assert (log.step, log.threshold, log.size, log.gate_open) == (1, 0.5, 3, False)
    assert log.offered is groups
    assert log.stored == [Key(0, 1), Key(2, 1), Key(4, 1), Key(5, 1)]
    assert log.departures == [Departure(Key(0, 1), "capacity")]
    assert log.draws == []
    assert log.metrics()["replay/hard_share"] == 4 / 6


def test_draws_are_logged_with_age_and_earlier_draws() -> None:
    replay = Replay(small_config(min_groups=1, warmup_steps=0, sampling="recent", groups_per_update=2))
    offer(replay, 1, 0)
    replay.draw(1)
    offer(replay, 4, 1)
    first, second = replay.draw(4), replay.draw(4)
    assert keys(first) == keys(second) == [(1, 4), (0, 1)]
    assert [draw.staleness for draw in replay.log.draws] == [[0, 3], [0, 3]]
    assert [draw.reuse for draw in replay.log.draws] == [[0, 1], [1, 2]]
    assert [keys(draw.groups) for draw in replay.log.draws] == [keys(first), keys(second)]
    assert replay.log.gate_open
    assert [stored.reuse_count for stored in replay.buffer] == [3, 2]


def test_storing_goes_on_before_and_after_the_gate_opens() -> None:
    replay = Replay(small_config())
    drawn = []
    for step in range(1, 6):
        offer(replay, step, step, step + 50)
        drawn.append(len(replay.draw(step)))
    assert drawn == [0, 0, 3, 3, 3]  # 4 groups are stored at step 2, but warm-up lasts through it
    assert len(replay.buffer) == 8


def test_storing_can_stop_once_replay_has_started() -> None:
    replay = Replay(small_config(store_after_start=False))
    for step in range(1, 6):
        offer(replay, step, step, step + 50)
        replay.draw(step)
    # The gate opens with the draw of step 3, whose groups were offered before.
    assert [step for _, step in keys(replay.buffer)] == [1, 1, 2, 2, 3, 3]
    assert replay.log.stored == []


def test_closed_gate_draws_nothing_and_takes_no_random_number() -> None:
    replay = Replay(small_config(min_groups=4))
    offer(replay, 9, 0, 1, 2)
    before = replay.state_dict()["rng"]
    assert replay.draw(9) == []
    assert replay.log.draws == []
    assert not replay.log.gate_open
    assert replay.state_dict()["rng"] == before


def test_draw_is_rounded_down_to_the_data_parallel_size() -> None:
    replay = Replay(small_config(groups_per_update=7))
    offer(replay, 3, *range(6))
    assert [len(replay.draw(3, multiple_of=ranks)) for ranks in (1, 2, 4, 5, 7)] == [6, 6, 4, 5, 0]
    assert len(replay.log.draws) == 4  # a draw of nothing is no draw
    assert len(replay.draw(3)) == 6


def test_groups_of_another_step_are_refused_and_nothing_is_stored() -> None:
    replay = Replay(small_config())
    before = replay.state_dict()
    with pytest.raises(ValueError, match="a group of step 2 was offered at step 1"):
        replay.offer([make_group(0, step=1), make_group(1, step=2)], step=1)
    assert replay.state_dict() == before


def test_groups_leave_when_older_than_the_staleness_limit() -> None:
    replay = Replay(small_config(max_staleness=2, min_groups=1, warmup_steps=0))
    offer(replay, 1, 0, 1)
    for step in (2, 3):
        offer(replay, step)
        assert (keys(replay.buffer), replay.log.departures) == ([(0, 1), (1, 1)], [])
    offer(replay, 4, 2)
    assert replay.log.departures == [Departure(Key(0, 1), "staleness"), Departure(Key(1, 1), "staleness")]
    assert keys(replay.buffer) == [(2, 4)]
    assert replay.draw(7) == []  # stale groups leave before a draw without an offer too
    assert (replay.log.departures[-1], replay.log.size) == (Departure(Key(2, 4), "staleness"), 0)


def test_quantile_threshold_is_over_all_offered_groups() -> None:
    replay = Replay(small_config(threshold_rule="quantile", threshold_quantile=0.5, threshold_window=4))
    replay.offer([make_group(i, 1, rewards=(r, r)) for i, r in enumerate([0.0, 0.25, 1.0])], 1)
    assert (replay.log.threshold, keys(replay.buffer)) == (0.25, [(0, 1)])
    replay.offer([make_group(i, 2, rewards=(r, r)) for i, r in enumerate([1.0, 0.5])], 2)
    assert replay.log.threshold == 0.75  # of 0.25, 1, 1, 0.5
    assert replay.log.stored == [Key(1, 2)]


class TinyReplay:
    """First in, first out and hard, with the limit of age: [prompt, step, draws] in a list."""

    def __init__(self, config: ReplayConfig) -> None:
        self.config = config
        self.rows: list[list[int]] = []
        self.is_open = False

    def leave(self, step: int) -> None:
        oldest = -1 if self.config.max_staleness is None else step - self.config.max_staleness
        self.rows = [row for row in self.rows if row[1] >= oldest]

    def offer(self, kinds: list[int], step: int) -> None:
        self.leave(step)
        if self.is_open and not self.config.store_after_start:
            return
        for index, kind in enumerate(kinds):
            rewards, advantages = KINDS[kind]
            hard = sum(rewards) / 2 < self.config.threshold
            if hard and (any(advantages) or not self.config.require_signal):
                self.rows.append([index, step, 0])
        self.rows = self.rows[-self.config.capacity :]

    def size_of_draw(self, step: int, ranks: int) -> int:
        self.leave(step)
        first = self.config.warmup_steps + (self.config.start == "after")
        self.is_open |= step >= first and len(self.rows) >= self.config.min_groups
        size = min(len(self.rows), self.config.groups_per_update) if self.is_open else 0
        return size // ranks * ranks

    def take(self, drawn: list[tuple[int, int]]) -> None:
        for row in self.rows:
            row[2] += (row[0], row[1]) in drawn


fifo_and_hard = configs(threshold_rule="fixed", admission="hard")


@settings(deadline=None)
@given(config=fifo_and_hard, run=offers(40, minimum=15), ranks=st.integers(1, 3))
def test_contents_and_sizes_of_draws_are_those_of_a_list(
    config: ReplayConfig, run: list[list[int]], ranks: int
) -> None:
    replay, model = Replay(config), TinyReplay(config)
    for step, kinds in enumerate(run, start=1):
        replay.offer(groups_of(kinds, step), step)
        model.offer(kinds, step)
        assert [[one.prompt_index, one.step, one.reuse_count] for one in replay.buffer] == model.rows
        for _ in range(config.updates_per_step):
            size = model.size_of_draw(step, ranks)
            drawn = keys(replay.draw(step, ranks))
            assert len(drawn) == size
            assert replay.gate.is_open == model.is_open
            model.take(drawn)


@settings(deadline=None)
@given(config=configs(), run=offers(40, minimum=15), ranks=st.integers(1, 3))
def test_what_holds_after_any_sequence_of_operations(
    config: ReplayConfig, run: list[list[int]], ranks: int
) -> None:
    replay = Replay(config)
    was_open = False
    for step, kinds in enumerate(run, start=1):
        before = keys(replay.buffer)
        offered = groups_of(kinds, step)
        replay.offer(offered, step)
        draws = [keys(replay.draw(step, ranks)) for _ in range(config.updates_per_step)]
        after, log = keys(replay.buffer), replay.log
        left = [tuple(departure.key) for departure in log.departures]

        assert len(after) == log.size == len(before) + len(log.stored) - len(left)
        assert sorted(after + left) == sorted(before + [tuple(key) for key in log.stored])
        assert len(after) <= config.capacity
        assert replay.buffer.nbytes == sum(group_of_stored(stored).nbytes for stored in replay.buffer)
        assert set(log.stored) <= set(keys(offered))

        assert replay.gate.is_open >= was_open
        was_open = replay.gate.is_open
        for drawn in draws:
            assert len(drawn) == len(set(drawn)) <= config.groups_per_update
            assert len(drawn) % ranks == 0
            assert was_open or not drawn
            assert set(drawn) <= set(before) | set(keys(offered))
        for stored in replay.buffer:
            assert config.max_staleness is None or stored.staleness(step) <= config.max_staleness


def group_of_stored(stored: Any) -> RolloutGroup:
    """The group that was offered for a stored one: the kind whose tensors are the same."""
    kinds = (group_of(stored.prompt_index, stored.step, kind) for kind in range(len(KINDS)))
    (group,) = [group for group in kinds if contents(group) == contents(stored.group())]
    return group


@settings(deadline=None)
@given(config=configs(), run=offers(30, minimum=10), ranks=st.integers(1, 3))
def test_same_settings_and_offers_repeat_exactly(
    config: ReplayConfig, run: list[list[int]], ranks: int
) -> None:
    first, second = Replay(config), Replay(config)
    for step, kinds in enumerate(run, start=1):
        assert train_step(first, kinds, step, ranks) == train_step(second, kinds, step, ranks)
    assert first.state_dict() == second.state_dict()


@settings(deadline=None, max_examples=settings.default.max_examples // 2)
@given(config=configs(), run=offers(10))
def test_writing_to_offered_or_drawn_tensors_never_reaches_the_buffer(
    config: ReplayConfig, run: list[list[int]]
) -> None:
    replay, untouched = Replay(config), Replay(config)
    for step, kinds in enumerate(run, start=1):
        groups = [fresh_copy(group) for group in groups_of(kinds, step)]
        replay.offer(groups, step)
        untouched.offer(groups_of(kinds, step), step)
        scribble(groups)
        for _ in range(config.updates_per_step):
            drawn = replay.draw(step)
            assert [contents(group) for group in drawn] == [contents(g) for g in untouched.draw(step)]
            scribble(drawn)
        assert buffered(replay) == buffered(untouched)


def fresh_copy(group: RolloutGroup) -> RolloutGroup:
    planes = {name: plane.clone() for name, plane in group.planes().items()}
    return RolloutGroup(group.prompt_index, group.side, group.mode, group.step, **planes)


def scribble(groups: list[RolloutGroup]) -> None:
    for group in groups:
        for plane in group.planes().values():
            plane.zero_()


def test_padded_rows_of_a_draw_are_copies_too() -> None:
    replay = Replay(small_config(min_groups=1))
    offer(replay, 3, 5)
    before = buffered(replay)
    batch = pad_groups(replay.draw(3), pad_token_id=0)
    responses = batch["responses"].clone()
    for tensor in batch.values():
        tensor.add_(7)
    assert [kept for _, kept in buffered(replay)] == [kept for _, kept in before]
    assert torch.equal(pad_groups(replay.draw(3), pad_token_id=0)["responses"], responses)


def test_admission_and_sampling_use_different_random_numbers() -> None:
    rng = Replay(small_config()).state_dict()["rng"]
    assert set(rng) == {"admission", "sampling"}
    assert rng["admission"] != rng["sampling"]


def test_number_of_random_admissions_does_not_move_the_draws() -> None:
    states = []
    for offered in (3, 8):
        replay = Replay(small_config(admission="random"))
        offer(replay, 3, *range(offered))
        states.append(replay.state_dict()["rng"])
    assert states[0]["sampling"] == states[1]["sampling"]
    assert states[0]["admission"] != states[1]["admission"]


def test_taken_state_does_not_follow_later_offers_and_draws() -> None:
    replay = Replay(small_config(min_groups=1, warmup_steps=0))
    offer(replay, 1, 0)
    state = replay.state_dict()
    offer(replay, 2, 1)
    replay.draw(2)
    assert [(stored.prompt_index, stored.reuse_count) for stored in state["groups"]] == [(0, 0)]


def test_two_replays_loaded_from_one_state_do_not_share_groups() -> None:
    source = Replay(small_config(min_groups=1, warmup_steps=0))
    offer(source, 1, 0)
    state = source.state_dict()
    first, second = Replay(source.config), Replay(source.config)
    first.load_state_dict(state)
    second.load_state_dict(state)
    first.draw(1)
    assert [stored.reuse_count for stored in second.buffer] == [0]


def test_more_groups_than_the_capacity_are_refused_and_nothing_changes() -> None:
    full = Replay(small_config())
    offer(full, 3, *range(8))
    full.draw(3)
    smaller = Replay(small_config(capacity=7))
    before = smaller.state_dict()
    with pytest.raises(
        ReplayStateError,
        match=r"^the saved replay buffer holds 8 groups but replay.capacity is 7; raise .* to at least 8$",
    ):
        smaller.load_state_dict(full.state_dict())
    assert smaller.state_dict() == before


@pytest.mark.parametrize("words", [None, [], [3, [1, 2], None], [3, "x", None], [3, [-1] * 625, None]])
@pytest.mark.parametrize("name", ["admission", "sampling"])
def test_unreadable_generator_state_is_refused_and_nothing_changes(name: str, words: object) -> None:
    source, replay = Replay(small_config()), Replay(small_config())
    offer(source, 3, 0, 1, 2, 3)
    source.draw(3)
    broken, state = source.state_dict(), replay.state_dict()
    broken["rng"][name] = words
    with pytest.raises(ReplayStateError, match=f"^the saved state of the {name} generator is not readable: "):
        replay.load_state_dict(broken)
    assert replay.state_dict() == state


@pytest.mark.parametrize("saved", [None, 3])
def test_an_unreadable_threshold_is_refused_and_nothing_changes(saved: Any) -> None:
    source = Replay(small_config())
    offer(source, 3, 0, 1, 2, 3)
    replay = Replay(small_config(threshold_rule="quantile"))
    before = replay.state_dict()
    with pytest.raises(ReplayStateError, match=r"^the saved threshold is not readable: "):
        replay.load_state_dict({**source.state_dict(), "threshold": saved})
    assert replay.state_dict() == before


def test_smaller_buffer_does_not_close_an_open_gate() -> None:
    first = Replay(small_config(min_groups=3))
    offer(first, 3, 0, 1, 2, 3)
    assert len(first.draw(3)) == 3
    second = Replay(small_config(min_groups=8, warmup_steps=1000))
    second.load_state_dict(first.state_dict())
    assert len(second.draw(4)) == 3


def test_settings_of_the_resumed_run_apply_from_there_on() -> None:
    first = Replay(small_config())
    offer(first, 1, 0, 1)
    offer(first, 2, 2)
    second = Replay(small_config(max_staleness=1, threshold=0.0))
    second.load_state_dict(first.state_dict())
    assert keys(second.buffer) == [(0, 1), (1, 1), (2, 2)]
    offer(second, 3, 3)
    assert keys(second.buffer) == [(2, 2)]
