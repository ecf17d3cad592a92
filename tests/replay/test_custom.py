"""Rules of a user's own decide, and go on after a restart as if never stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.replay import Replay, ReplayConfig, ReplayStateError, load, save
from recipe.rerule.replay.state import read_record
from tests.replay import own_rules, recorded
from tests.replay.groups import keys
from tests.replay.recorded import PAPER

OWN = {
    "admission": "EveryOther",
    "sampling": "LeastDrawn",
    "eviction": "AnyLeaves",
    "threshold_rule": "MovingMean",
}


def config_of(**names: str) -> ReplayConfig:
    paths = {setting: f"{own_rules.__name__}:{name}" for setting, name in names.items()}
    return ReplayConfig(**{**PAPER, **paths})


def run(replay: Replay, first: int, last: int) -> list[dict[str, Any]]:
    return [step for _, step in zip(range(first, last + 1), recorded.steps(replay, first), strict=False)]


def test_an_own_admission_decides_what_is_stored() -> None:
    """Seven groups a step: the first step stores 0 2 4 6, the second 1 3 5."""
    first, second = run(Replay(config_of(admission="EveryOther")), 1, 2)
    assert first["record"]["stored"] == [[0, 1], [2, 1], [4, 1], [6, 1]]
    assert second["record"]["stored"] == [[1, 2], [3, 2], [5, 2]]


def test_an_own_admission_chooses_among_the_groups_with_signal_where_that_is_asked_for() -> None:
    config = ReplayConfig(
        **{**PAPER, "require_signal": True, "admission": f"{own_rules.__name__}:EveryOther"}
    )
    groups = recorded.offered(1)
    replay = Replay(config)
    replay.offer(groups, 1)
    assert keys(replay.buffer) == keys([group for group in groups if group.has_signal][::2])


def test_an_own_sampling_decides_what_is_drawn() -> None:
    replay = Replay(config_of(sampling="LeastDrawn"))
    run(replay, 1, 8)
    draw = replay.log.draws[0]
    assert max(draw.reuse) <= min(stored.reuse_count for stored in replay.buffer)


def test_an_own_threshold_decides_what_is_hard() -> None:
    (step,) = run(Replay(config_of(threshold_rule="MovingMean")), 1, 1)
    rule = own_rules.MovingMean(ReplayConfig(), None)  # type: ignore[arg-type]
    assert step["record"]["threshold"] == rule.update(recorded.offered(1))


@pytest.mark.parametrize("stop", [1, 4, 9])
def test_a_run_with_own_rules_goes_on_as_if_never_stopped(stop: int, tmp_path: Path) -> None:
    whole = Replay(config_of(**OWN))
    expected = run(whole, 1, 14)
    first = Replay(config_of(**OWN))
    run(first, 1, stop)
    save(first, tmp_path)
    second = Replay(config_of(**OWN))
    load(second, tmp_path)
    assert run(second, stop + 1, 14) == expected[stop:]
    assert json.dumps(read_record(tmp_path)["rules"]) == json.dumps(first.state_dict()["rules"])


def test_an_own_eviction_draws_from_numbers_of_its_own() -> None:
    """With the same admissions, another seed lets others go; the draws' numbers are not touched."""
    evicted = []
    for seed in (1, 2):
        config = ReplayConfig(**{**PAPER, "seed": seed, "eviction": f"{own_rules.__name__}:AnyLeaves"})
        evicted.append([step["record"]["evicted"] for step in run(Replay(config), 1, 8)])
    assert evicted[0] != evicted[1]


def test_another_class_starts_anew_and_the_groups_stay(tmp_path: Path) -> None:
    first = Replay(config_of(admission="EveryOther"))
    run(first, 1, 3)
    save(first, tmp_path)
    for names in ({"admission": "EveryThird"}, {}):
        second = Replay(config_of(**names))
        load(second, tmp_path)
        assert keys(second.buffer) == keys(first.buffer)
        assert [rule.rule.offered for rule in second._rules.values()] == [0] * len(names)


def test_own_rules_may_go_on_with_a_buffer_of_built_in_ones(tmp_path: Path) -> None:
    first = Replay(ReplayConfig(**PAPER))
    run(first, 1, 5)
    save(first, tmp_path)
    assert read_record(tmp_path)["rules"] == {}
    second = Replay(config_of(**OWN))
    load(second, tmp_path)
    assert keys(second.buffer) == keys(first.buffer)
    run(second, 6, 9)


@pytest.mark.parametrize(
    "damage", [{"admission": 3}, {"admission": {}}, {"admission": {"class": "?", "state": 1}}, "text", 7]
)
def test_a_damaged_state_of_a_rule_is_one_line_or_ignored(damage: Any, tmp_path: Path) -> None:
    config = config_of(admission="EveryOther")
    replay = Replay(config)
    run(replay, 1, 2)
    save(replay, tmp_path)
    record = json.loads((tmp_path / "state.json").read_text())
    (tmp_path / "state.json").write_text(json.dumps({**record, "rules": damage}))
    again = Replay(config)
    if isinstance(damage, dict) and damage["admission"] == {"class": "?", "state": 1}:
        load(again, tmp_path)
        return
    with pytest.raises(ReplayStateError, match="state of a rule is not readable") as raised:
        load(again, tmp_path)
    assert "\n" not in str(raised.value)
    assert len(again.buffer) == 0
