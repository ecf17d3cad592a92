from __future__ import annotations

import json

import pytest

from recipe.rerule.replay.buffer import Visits
from tests.replay.groups import make_group


def visit(visits: Visits, *prompts: int, best: float = 0.0) -> None:
    visits.observe([make_group(index, rewards=[0.0, best]) for index in prompts])


def test_prompt_is_set_aside_at_the_visit_that_reaches_the_limit() -> None:
    visits = Visits(3, 0.0)
    history = []
    for _ in range(4):
        visit(visits, 7)
        history.append(visits.is_set_aside(7))
    assert history == [False, False, True, True]


def test_prompts_are_counted_apart_and_listed_in_ascending_order() -> None:
    visits = Visits(2, 0.0)
    visit(visits, 9, 4, 30)
    visit(visits, 30, 9)
    assert visits.set_aside() == [9, 30]
    assert not visits.is_set_aside(4)
    assert not visits.is_set_aside(5)  # never seen


def test_one_reward_brings_a_prompt_back_for_good() -> None:
    visits = Visits(2, 0.0)
    for _ in range(5):
        visit(visits, 1)
    assert visits.set_aside() == [1]
    visit(visits, 1, best=0.1)
    assert visits.set_aside() == []
    for _ in range(5):
        visit(visits, 1)
    assert visits.set_aside() == []


def test_best_rollout_decides_and_not_the_mean() -> None:
    visits = Visits(1, 0.5)
    visits.observe([make_group(0, rewards=[0.0, 0.0, 0.0, 0.9]), make_group(1, rewards=[0.5, 0.5, 0.5, 0.5])])
    assert visits.set_aside() == [1]


@pytest.mark.parametrize(("best", "aside"), [(0.25, True), (0.3, True), (0.31, False), (1.0, False)])
def test_reward_has_to_be_exceeded_by_more_than_float32_noise(best: float, aside: bool) -> None:
    visits = Visits(1, 0.3)  # 0.3 in float32 is above the real 0.3
    visit(visits, 0, best=best)
    assert visits.is_set_aside(0) is aside


def test_prompt_never_seen_is_not_set_aside() -> None:
    assert not Visits(1, 0.0).is_set_aside(5)


def test_reward_at_the_resolution_is_not_exceeded() -> None:
    visits = Visits(1, 0.0)
    visits.restore({"0": (1, 1e-6), "1": (1, 1.01e-6)})
    assert visits.set_aside() == [0]


def test_negative_rewards_count_as_none() -> None:
    visits = Visits(1, 0.0)
    visits.observe([make_group(0, rewards=[-1.0, -0.5])])
    assert visits.set_aside() == [0]
    assert visits.state() == {"0": (1, -0.5)}


def test_without_a_limit_none_is_set_aside() -> None:
    visits = Visits(None, 0.0)
    for _ in range(100):
        visit(visits, 0)
    assert visits.set_aside() == []
    assert not visits.is_set_aside(0)


def test_state_survives_json_and_replaces_what_was_there() -> None:
    visits = Visits(2, 0.25)
    visit(visits, 3, 12, best=0.125)
    visit(visits, 3, best=0.25)
    visit(visits, 12, best=1.0)
    assert visits.state() == {"3": (2, 0.25), "12": (2, 1.0)}
    other = Visits(2, 0.25)
    visit(other, 5, 3)
    other.restore(json.loads(json.dumps(visits.state())))
    assert other.state() == visits.state()
    assert other.set_aside() == [3]
