"""The mixed update: which groups join a step's own, how many prompts are sampled, and the weights of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import Replay, ReplayConfig, ReplayHook, RolloutGroup, StepPlan, mixed
from recipe.rerule.replay.mixed import Part, part_weights
from tests.replay.groups import contents, keys, make_group
from tests.replay.runs import fitting, group_of

PROMPTS = 4
HARD, EASY = 1, 0  # kinds of group_of with and without signal
COMMON: dict[str, Any] = {
    "update": "mixed",
    "threshold_rule": "fixed",
    "threshold": 1.0,
    "admission": "all",
    "require_signal": True,
    "min_groups": 3,
    "warmup_steps": 1,
    "capacity": 12,
    "groups_per_update": 4,
}
HALF = {**COMMON, "mixed_places": "unsampled", "fresh_share": 0.5}
NO_SIGNAL = {**COMMON, "mixed_places": "no_signal"}


def made_hook(config: dict[str, Any], multiple_of: int = 1) -> ReplayHook:
    hook = ReplayHook(ReplayConfig(**config), multiple_of)
    hook.prompts = PROMPTS
    return hook


def train(
    hook: ReplayHook, kinds: Sequence[Sequence[int]], first: int = 1
) -> list[tuple[list[RolloutGroup], StepPlan]]:
    """Steps in which as many prompts are sampled as the hook wants; `kinds` of each step's groups."""
    found = []
    for step, of_step in enumerate(kinds, start=first):
        wanted = hook.fresh_prompts(step)
        groups = [group_of(index, step, kind) for index, kind in enumerate(of_step[:wanted])]
        found.append((groups, hook.before_update(groups, step)))
    return found


def test_half_of_the_prompts_are_sampled_once_the_buffer_can_give_the_others() -> None:
    """Step 1 stores four groups; the gate opens at step 2, after warmup_steps, by these four."""
    steps = train(made_hook(HALF), [[HARD] * PROMPTS] * 4)
    assert [len(groups) for groups, _ in steps] == [4, 2, 2, 2]
    assert [plan.fresh_prompts for _, plan in steps] == [2, 2, 2, 2]
    # The newest of the earlier steps, and never the step's own.
    assert [keys(plan.extra_groups) for _, plan in steps] == [
        [],
        [(3, 1), (2, 1)],
        [(1, 2), (0, 2)],
        [(1, 3), (0, 3)],
    ]
    assert all(plan.draws == [] and plan.left_out == [] for _, plan in steps)


def test_all_prompts_are_sampled_while_the_buffer_could_not_give_the_others() -> None:
    """A group leaves after its second draw, so the buffer runs dry, and the step is whole again."""
    few = {**HALF, "max_reuse": 1, "min_groups": 2}
    steps = train(made_hook(few), [[HARD] * 4, [EASY] * 4, [EASY] * 4, [HARD] * 4, [EASY] * 4])
    # 4 are stored at step 1; steps 2 and 3 use two each; step 4 finds none and samples and stores four.
    assert [len(groups) for groups, _ in steps] == [4, 2, 2, 4, 2]
    assert [len(plan.extra_groups) for _, plan in steps] == [0, 2, 2, 0, 2]


def test_groups_beyond_the_batch_are_added() -> None:
    steps = train(made_hook({**COMMON, "groups_per_update": 3}), [[HARD] * 4] * 3)
    assert [(len(groups), len(plan.extra_groups)) for groups, plan in steps] == [(4, 0), (4, 3), (4, 3)]
    assert all(plan.fresh_prompts is None and not plan.left_out for _, plan in steps)


def test_the_first_groups_without_signal_give_up_their_places() -> None:
    steps = train(made_hook(NO_SIGNAL), [[HARD] * 3 + [EASY], [EASY, HARD, EASY, EASY], [HARD] * 4])
    assert [len(plan.extra_groups) for _, plan in steps] == [0, 3, 0]
    assert [plan.left_out for _, plan in steps] == [[], [0, 2, 3], []]


def test_places_are_left_to_the_step_where_the_buffer_has_too_few() -> None:
    hook = made_hook({**NO_SIGNAL, "min_groups": 1})
    steps = train(hook, [[HARD, EASY, EASY, EASY], [EASY, EASY, HARD, EASY]])
    assert keys(steps[1][1].extra_groups) == [(0, 1)]
    assert steps[1][1].left_out == [0]
    assert hook.log.metrics()["replay/left_out_groups"] == 1
    assert hook.log.metrics()["replay/fresh_groups"] == 4


def test_unsampled_and_signalless_places_are_filled_together() -> None:
    both = {**NO_SIGNAL, "fresh_share": 0.5}
    steps = train(made_hook(both), [[HARD] * 4, [HARD, EASY, HARD, HARD]])
    assert [len(groups) for groups, _ in steps] == [4, 2]
    assert len(steps[1][1].extra_groups) == 3
    assert steps[1][1].left_out == [1]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_more_than_groups_per_update_join(limit: int) -> None:
    steps = train(made_hook({**NO_SIGNAL, "groups_per_update": limit}), [[HARD] * 4, [EASY] * 4])
    assert len(steps[1][1].extra_groups) == len(steps[1][1].left_out) == limit


def test_drawn_groups_are_a_multiple_of_the_ranks_and_leave_as_many_out() -> None:
    steps = train(made_hook(NO_SIGNAL, multiple_of=2), [[HARD] * 4, [EASY] * 3 + [HARD]])
    assert len(steps[1][1].extra_groups) == 2
    assert steps[1][1].left_out == [0, 1]


def test_without_replay_nothing_joins_and_every_prompt_is_sampled() -> None:
    steps = train(made_hook({**HALF, "enable": False}), [[HARD] * 4] * 3)
    assert [(len(groups), plan) for groups, plan in steps] == [(4, StepPlan([]))] * 3


def test_single_rollouts_fill_as_many_places_as_the_groups_that_they_would_make() -> None:
    """Two prompts are sampled, so four rollouts join, of any groups; then two more places are filled."""
    single = {"unit": "rollout", "sampling": "highest", "priority_half_life": float("inf")}
    hook = made_hook({**NO_SIGNAL, **single, "fresh_share": 0.5})
    # Advantages of kind 1: -1 and 1; of kind 3: 0.5 and -0.5; of kind 4: 0.25 and -0.25.
    steps = train(hook, [[1, 3, 4, 1], [HARD, HARD], [EASY, EASY]])
    assert [keys(plan.extra_groups) for _, plan in steps] == [
        [],
        [(3, 1), (3, 1), (0, 1), (0, 1)],
        # Of |advantage| 1 the newest first; then of 0.5 none is needed.
        [(1, 2), (1, 2), (0, 2), (0, 2), (3, 1), (3, 1), (0, 1), (0, 1)],
    ]
    assert [group.n for _, plan in steps for group in plan.extra_groups] == [1] * 12
    assert [plan.left_out for _, plan in steps] == [[], [], [0, 1]]
    assert hook.log.metrics()["replay/left_out_groups"] == 2
    assert hook.log.metrics()["replay/drawn_groups"] == 4
    assert hook.log.metrics()["replay/drawn_rollouts"] == 8


def test_what_was_drawn_and_left_before_the_offer_is_in_the_steps_record() -> None:
    hook = made_hook({**HALF, "max_staleness": 1})
    train(hook, [[HARD] * 4] * 3)
    assert hook.replay is not None
    record = hook.replay.log.record()
    assert record["drawn"] == [[[1, 2], [0, 2]]]
    assert record["evicted"] == [[index, 1, "staleness"] for index in range(4)]
    assert record["size"] == len(hook.replay.buffer) == 4
    metrics = hook.log.metrics()
    assert metrics["replay/drawn_groups"] == 2
    assert metrics["replay/staleness_mean"] == 1
    assert metrics["replay/updates"] == 0  # until the trainer notes its update
    hook.note_mixed({"replay/ratio_max": 1.5})
    assert hook.log.metrics()["replay/updates"] == 1
    assert hook.log.metrics()["replay/ratio_max"] == 1.5


def configs() -> st.SearchStrategy[dict[str, Any]]:
    shares = st.sampled_from([("added", 1.0), ("unsampled", 0.25), ("unsampled", 0.5), ("no_signal", 0.75)])
    return st.fixed_dictionaries(
        {
            "places": shares,
            "min_groups": st.integers(1, 6),
            "warmup_steps": st.integers(0, 3),
            "capacity": st.integers(6, 9),
            "groups_per_update": st.integers(3, 6),
            "sampling": st.sampled_from(["uniform", "recent", "prioritized", "highest"]),
            "priority_use_half_life": st.sampled_from([None, 1.0]),
            "unit": st.sampled_from(["group", "group", "rollout"]),
            "eviction": st.sampled_from(["fifo", "staleness", "signal"]),
            "max_staleness": st.sampled_from([None, 0, 1, 3]),
            "max_reuse": st.sampled_from([None, 1, 2]),
            "set_aside_visits": st.sampled_from([None, 2]),
        }
    ).map(
        lambda own: {
            **COMMON,
            **{name: value for name, value in fitting(own).items() if name != "places"},
            "mixed_places": own["places"][0],
            "fresh_share": own["places"][1],
            "require_signal": False,
        }
    )


STEPS = st.lists(st.lists(st.integers(0, 4), min_size=PROMPTS, max_size=PROMPTS), min_size=3, max_size=9)


@settings(max_examples=150, deadline=None)
@given(config=configs(), kinds=STEPS, ranks=st.sampled_from([1, 1, 2]))
def test_a_batch_with_unsampled_prompts_is_always_whole(
    config: dict[str, Any], kinds: list[list[int]], ranks: int
) -> None:
    """Whatever leaves the buffer: the places left to stored groups at one step are filled at the next."""
    config["groups_per_update"] += config["groups_per_update"] % 2
    hook = made_hook(config, ranks)
    for step, (groups, plan) in enumerate(train(hook, kinds), start=1):
        missing = PROMPTS - len(groups)
        filled = sum(group.n for group in plan.extra_groups) // 2
        trained = len(groups) - len(plan.left_out) + filled
        if config["mixed_places"] != "added" and missing % ranks == 0:
            assert trained == PROMPTS
        assert filled % ranks == 0
        assert filled <= config["groups_per_update"]
        assert all(group.step < step for group in plan.extra_groups)
        responses = [repr(contents(group)) for group in plan.extra_groups]
        assert len(set(responses)) == len(responses)
        assert all(not groups[place].has_signal for place in plan.left_out)
        assert hook.replay is not None
        assert len(hook.replay.buffer) <= config["capacity"]


@settings(max_examples=75, deadline=None)
@given(config=configs(), kinds=STEPS, cut=st.integers(1, 8))
def test_a_resumed_run_samples_draws_and_stores_as_one_never_stopped(
    config: dict[str, Any], kinds: list[list[int]], cut: int
) -> None:
    cut = min(cut, len(kinds) - 1)
    whole = made_hook(config)
    expected = train(whole, kinds)[cut:]
    first, resumed = made_hook(config), made_hook(config)
    train(first, kinds[:cut])
    assert first.replay is not None
    assert resumed.replay is not None
    resumed.replay.load_state_dict(first.replay.state_dict())
    found = train(resumed, kinds[cut:], first=cut + 1)
    for (own, plan), (wanted, wanted_plan) in zip(found, expected, strict=True):
        assert keys(own) == keys(wanted)
        assert keys(plan.extra_groups) == keys(wanted_plan.extra_groups)
        assert (plan.left_out, plan.fresh_prompts) == (wanted_plan.left_out, wanted_plan.fresh_prompts)
    assert whole.replay is not None
    assert keys(resumed.replay.buffer) == keys(whole.replay.buffer)


def test_asking_whether_it_can_draw_changes_nothing() -> None:
    memory = Replay(ReplayConfig(**{**HALF, "max_staleness": 2}))
    memory.offer([make_group(index, 1) for index in range(4)], 1)
    before, record = memory.state_dict(), memory.log.record()
    assert memory.can_draw_ahead(2, 4)
    assert not memory.can_draw_ahead(2, 5)
    assert not memory.can_draw_ahead(4, 1), "all are older than two steps then"
    assert memory.state_dict() == before
    assert memory.log.record() == record


@pytest.mark.parametrize(
    ("aggregation", "weight", "expected"),
    [
        ("token-mean", None, (300 / 400, 100 / 400)),
        ("seq-mean-token-sum", None, (12 / 20, 8 / 20)),
        ("seq-mean-token-mean", None, (12 / 20, 8 / 20)),
        ("seq-mean-token-sum-norm", None, (12 / 20, 8 / 20)),
        ("token-sum", None, (1.0, 1.0)),
        ("token-mean", 0.5, (0.5, 0.5)),
        ("seq-mean-token-mean", 0.25, (0.75, 0.25)),
        ("token-mean", 0.0, (1.0, 0.0)),
    ],
)
def test_the_weights_are_the_shares_of_the_batch_or_as_given(
    aggregation: str, weight: float | None, expected: tuple[float, float]
) -> None:
    assert part_weights(Part(12, 300), Part(8, 100), aggregation, weight) == pytest.approx(expected)


def test_a_batch_without_a_row_of_the_step_is_all_stored() -> None:
    assert part_weights(Part(0, 0), Part(8, 100), "token-mean", None) == (0.0, 1.0)


def test_the_prompts_to_sample_are_a_share_of_the_step() -> None:
    config = ReplayConfig(**{**HALF, "fresh_share": 0.75})
    assert [mixed.fresh_prompts(config, prompts) for prompts in (4, 8, 32)] == [3, 6, 24]
