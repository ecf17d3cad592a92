"""Replay over training steps, against a list and by hand, and the hook with a trainer of three lines."""

import copy
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import Replay, ReplayConfig, ReplayHook, ReplayStateError, RolloutGroup
from recipe.rerule.replay.log import Departure, Key, timed
from tests.replay import runs
from tests.replay.groups import PAPER_RULES, contents, keys, make_group
from tests.replay.runs import KINDS, PAPER, buffered, configs, group_of, groups_of, offered, offers


def small(**changes: Any) -> Replay:
    sizes = {"min_groups": 3, "warmup_steps": 2, "capacity": 8, "groups_per_update": 3, "seed": 1}
    return Replay(ReplayConfig(**{**PAPER_RULES, **sizes, **changes}))


def offer(replay: Replay, step: int, *prompts: int, rewards: tuple[float, ...] = (0.0, 0.5)) -> None:
    replay.offer([make_group(index, step, rewards=rewards) for index in prompts], step)


def test_offer_stores_the_hard_groups_in_order_and_says_what_it_did() -> None:
    replay, means = small(threshold=0.5, capacity=3), (0.0, 1.0, 0.4, 0.5, 0.1, 0.2)
    groups = [make_group(index, rewards=[mean, mean]) for index, mean in enumerate(means)]
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
    replay = small(min_groups=1, warmup_steps=0, sampling="recent", groups_per_update=2)
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


def test_groups_of_another_step_are_refused_and_nothing_is_stored() -> None:
    replay = small()
    before = replay.state_dict()
    with pytest.raises(ValueError, match="a group of step 2 was offered at step 1"):
        replay.offer([make_group(0, step=1), make_group(1, step=2)], step=1)
    assert replay.state_dict() == before


def test_groups_leave_when_older_than_the_staleness_limit() -> None:
    replay = small(max_staleness=2, min_groups=1, warmup_steps=0)
    offer(replay, 1, 0, 1)
    for step in (2, 3):
        offer(replay, step)
        assert (keys(replay.buffer), replay.log.departures) == ([(0, 1), (1, 1)], [])
    offer(replay, 4, 2)
    assert replay.log.departures == [Departure(Key(0, 1), "staleness"), Departure(Key(1, 1), "staleness")]
    assert keys(replay.buffer) == [(2, 4)]
    assert replay.draw(7) == []  # stale groups leave before a draw without an offer too
    assert (replay.log.departures[-1], replay.log.size) == (Departure(Key(2, 4), "staleness"), 0)


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
        self.is_open |= step > self.config.warmup_steps and len(self.rows) >= self.config.min_groups
        size = min(len(self.rows), self.config.groups_per_update) if self.is_open else 0
        return size // ranks * ranks

    def take(self, drawn: list[tuple[int, int]]) -> None:
        for row in self.rows:
            row[2] += (row[0], row[1]) in drawn


@settings(deadline=None)
@given(
    config=configs(threshold_rule="fixed", admission="hard"),
    run=offers(40, minimum=15),
    ranks=st.integers(1, 3),
)
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
            assert replay.is_open == model.is_open
            model.take(drawn)


@settings(deadline=None)
@given(config=configs(), run=offers(40, minimum=15), ranks=st.integers(1, 3))
def test_what_holds_after_any_sequence_of_operations(
    config: ReplayConfig, run: list[list[int]], ranks: int
) -> None:
    replay = Replay(config)
    was_open = False
    for step, kinds in enumerate(run, start=1):
        before, new = keys(replay.buffer), groups_of(kinds, step)
        replay.offer(new, step)
        draws = [keys(replay.draw(step, ranks)) for _ in range(config.updates_per_step)]
        after, log = keys(replay.buffer), replay.log
        left = [tuple(departure.key) for departure in log.departures]

        assert len(after) == log.size == len(before) + len(log.stored) - len(left)
        assert sorted(after + left) == sorted(before + [tuple(key) for key in log.stored])
        assert len(after) <= config.capacity
        assert all(stored.nbytes == group_of_stored(stored).nbytes for stored in replay.buffer)
        assert set(log.stored) <= set(keys(new))

        assert replay.is_open >= was_open
        was_open = replay.is_open
        assert [keys(draw.groups) for draw in log.draws] == [drawn for drawn in draws if drawn]
        for drawn in draws:
            assert len(drawn) == len(set(drawn)) <= config.groups_per_update
            assert len(drawn) % ranks == 0
            assert was_open or not drawn
            assert set(drawn) <= set(before) | set(keys(new))
        for stored in replay.buffer:
            assert config.max_staleness is None or stored.staleness(step) <= config.max_staleness


def group_of_stored(stored: Any) -> RolloutGroup:
    """The group that was offered for a stored one: the kind whose tensors are the same."""
    kinds = (group_of(stored.prompt_index, stored.step, kind) for kind in range(len(KINDS)))
    (group,) = [group for group in kinds if contents(group) == contents(stored.group())]
    return group


@settings(deadline=None, max_examples=settings.default.max_examples // 2)
@given(config=configs(), run=offers(10))
def test_writing_to_offered_or_drawn_tensors_never_reaches_the_buffer(
    config: ReplayConfig, run: list[list[int]]
) -> None:
    replay, untouched = Replay(config), Replay(config)
    for step, kinds in enumerate(run, start=1):
        groups = copy.deepcopy(groups_of(kinds, step))
        replay.offer(groups, step)
        untouched.offer(groups_of(kinds, step), step)
        scribble(groups)
        for _ in range(config.updates_per_step):
            drawn = replay.draw(step)
            assert [contents(group) for group in drawn] == [contents(g) for g in untouched.draw(step)]
            scribble(drawn)
        assert buffered(replay) == buffered(untouched)


def scribble(groups: list[RolloutGroup]) -> None:
    for group in groups:
        for plane in group.planes().values():
            plane.zero_()


def test_the_number_of_random_admissions_does_not_move_the_draws() -> None:
    states = []
    for count in (3, 8):
        replay = small(admission="random")
        offer(replay, 3, *range(count))
        states.append(replay.state_dict()["rng"])
    assert states[0]["sampling"] == states[1]["sampling"]
    assert states[0]["admission"] != states[1]["admission"]


def test_the_seed_decides_the_random_admissions() -> None:
    """As many as are hard: six of the first step's seven."""
    replay = small(admission="random")
    replay.offer(offered(1), 1)
    places = random.Random("1/admission").sample(range(7), 6)
    assert keys(replay.buffer) == [(place, 1) for place in sorted(places)]


def test_replays_do_not_share_groups_through_a_state() -> None:
    source, first, second = (small(min_groups=1, warmup_steps=0) for _ in range(3))
    offer(source, 1, 0)
    state = source.state_dict()
    offer(source, 2, 1)
    source.draw(2)
    for replay in (first, second):
        replay.load_state_dict(state)
    first.draw(1)
    assert [(stored.prompt_index, stored.reuse_count) for stored in second.buffer] == [(0, 0)]


NOT_WORDS = [None, [], [3, [1, 2], None], [3, "x", None], [3, [-1] * 625, None]]
UNREADABLE: list[tuple[Any, str]] = [
    *(
        ({"rng": {name: words}}, f"^the saved state of the {name} generator is not readable: ")
        for name in ("admission", "sampling")
        for words in NOT_WORDS
    ),
    *(({"threshold": saved}, "^the saved threshold is not readable: ") for saved in (None, 3)),
    (
        {"groups": [None] * 9},
        r"^the saved replay buffer holds 9 groups but replay.capacity is 8; raise .* to at least 9$",
    ),
]


@pytest.mark.parametrize(("changes", "line"), UNREADABLE)
def test_a_state_that_cannot_be_taken_is_refused_and_nothing_changes(changes: Any, line: str) -> None:
    source, replay = (small(threshold_rule="quantile") for _ in range(2))
    offer(source, 3, 0, 1, 2, 3)
    state, before = source.state_dict(), replay.state_dict()
    rng = state["rng"] | changes.get("rng", {})
    with pytest.raises(ReplayStateError, match=line):
        replay.load_state_dict(state | changes | {"rng": rng})
    assert replay.state_dict() == before


def test_settings_of_the_resumed_run_apply_from_there_on_and_an_open_gate_stays_open() -> None:
    first = small(min_groups=3)
    offer(first, 2, 0, 1)
    offer(first, 3, 2)
    assert len(first.draw(3)) == 3
    second = small(max_staleness=1, threshold=0.0, min_groups=8, warmup_steps=1000)
    second.load_state_dict(first.state_dict())
    assert keys(second.buffer) == [(0, 2), (1, 2), (2, 3)]
    offer(second, 4, 3)
    assert keys(second.buffer) == keys(second.draw(4)) == [(2, 3)]


Calls = list[tuple[list[tuple[int, int]], bool]]


def train(hook: ReplayHook, steps: int = 6) -> list[Calls]:
    """For each step what `update_replay` was called with."""
    asked: list[Calls] = []

    def update_replay(drawn: list[RolloutGroup], more_follow: bool) -> dict[str, float]:
        asked[-1].append((keys(drawn), more_follow))
        count = float(len(asked[-1]))
        seconds = {"replay/seconds/train": 0.5, "replay/seconds/weigh": 16.0}
        return {"replay/pg_loss": count, "replay/ratio_max": count, f"replay/only_{count:g}": count} | seconds

    for step in range(1, steps + 1):
        asked.append([])
        hook.after_update(hook.before_update(offered(step), step), update_replay)
    return asked


def hook_of(**changes: Any) -> ReplayHook:
    return ReplayHook(ReplayConfig(**{**PAPER, **changes}))


def test_the_hook_draws_as_a_replay_that_is_called_itself() -> None:
    asked, run = train(hook_of()), runs.steps(Replay(ReplayConfig(**PAPER)), last=6)
    expected = [step["record"]["drawn"] for step in run]
    assert [[[list(key) for key in drawn] for drawn, _ in calls] for calls in asked] == expected


def test_all_but_the_last_update_of_a_step_are_told_that_more_follow() -> None:
    asked = train(hook_of(updates_per_step=3), 5)
    assert [[more for _, more in calls] for calls in asked] == [[]] * 3 + [[True, True, False]] * 2


def test_the_draws_are_rounded_down_to_the_data_parallel_size() -> None:
    hook = hook_of()
    hook.multiple_of = 3
    assert [len(drawn) for calls in train(hook) for drawn, _ in calls] == [3, 3, 3]
    control = hook_of(update="on_policy", groups_per_update=8)  # of 7 groups a step
    control.multiple_of = 2
    assert [len(taken) for calls in train(control) for taken, _ in calls] == [6, 6, 6]


def test_seconds_of_a_part_add_up() -> None:
    seconds = {"replay/seconds/update": 100.0}
    with timed("update", seconds):
        pass
    assert 100 <= seconds["replay/seconds/update"] < 101


def test_metrics_hold_replay_updates_and_seconds() -> None:
    hook = hook_of(updates_per_step=2)
    train(hook)
    seconds = {"offer": 10.0, "update": 3.0, "collate": 4.0, "record": 8.0}
    metrics = hook.metrics({f"replay/seconds/{name}": value for name, value in seconds.items()})
    assert metrics["replay/drawn_groups"] == 8
    assert metrics["replay/updates"] == 2
    assert (metrics["replay/pg_loss"], metrics["replay/ratio_max"]) == (1.5, 2.0)
    assert (metrics["replay/only_1"], metrics["replay/only_2"]) == (1.0, 2.0)
    assert metrics["replay/seconds/train"] == 1.0
    assert metrics["replay/seconds"] == 3.0
    assert 10 < metrics["replay/seconds/offer"] < 11
    assert metrics["replay/bookkeeping_seconds"] == pytest.approx(
        metrics["replay/seconds/offer"] + metrics["replay/seconds/draw"] + 4 + 8 + 2 * 16
    )


def test_without_replay_nothing_is_stored_or_drawn_and_the_shares_are_logged() -> None:
    hook, on = ReplayHook(ReplayConfig(enable=False)), ReplayHook(ReplayConfig())
    train(on)
    assert train(hook) == [[]] * 6
    assert hook.replay is None
    metrics = hook.metrics()
    assert 0 < metrics["replay/hard_share"] < 1
    assert metrics["replay/seconds"] == 0.0
    assert metrics["replay/threshold"] == on.metrics()["replay/threshold"]
    assert not {"replay/size", "replay/updates"} & set(metrics)


def test_the_control_trains_on_as_many_of_the_steps_own_groups_and_records_no_draw() -> None:
    control = hook_of(update="on_policy")
    drawn, own = train(hook_of()), train(control)
    assert [len(calls) for calls in own] == [len(calls) for calls in drawn] == [0, 0, 0, 1, 1, 1]
    for step, (ours, stored) in enumerate(zip(own, drawn, strict=True), start=1):
        for (taken, _), (theirs, _) in zip(ours, stored, strict=True):
            assert len(set(taken)) == len(taken) == min(len(theirs), len(offered(step)))
            assert {made for _, made in taken} == {step}
    assert control.log.record()["drawn"] == []
    assert control.metrics()["replay/drawn_groups"] == 0
    assert control.metrics()["replay/updates"] == 1
    by_prompt = {group.prompt_index: group.total_tokens for group in offered(6)}
    ((taken, _),) = own[-1]
    assert control.metrics()["replay/own_groups"] == len(taken)
    assert control.metrics()["replay/own_tokens"] == sum(by_prompt[index] for index, _ in taken)


def test_the_control_takes_groups_with_signal_where_replay_does_and_as_many_for_each_rank() -> None:
    groups = [make_group(i, rewards=[0.5, 0.5] if i < 4 else [0.0, 1.0]) for i in range(9)]
    assert len(small(require_signal=True).of_the_step(groups, 32, multiple_of=2)) == 4
    for required, prompts in ((True, range(4, 9)), (False, range(9))):
        taken = small(require_signal=required).of_the_step(groups, 32)
        assert {group.prompt_index for group in taken} == set(prompts)
    four = [tuple(one.prompt_index for one in small(seed=seed).of_the_step(groups, 4)) for seed in range(8)]
    assert len(set(four)) > 4  # drawn by the seed
