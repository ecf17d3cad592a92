"""Rules of a user's own decide, and go on after a restart; tests/refused has those that do not fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.replay import Replay, ReplayConfig, ReplayStateError, load, save
from recipe.rerule.replay.state import read_record
from tests.replay import own_rules
from tests.replay.groups import keys
from tests.replay.runs import PAPER, offered, steps

OWN = {
    "admission": "EveryOther",
    "sampling": "LeastDrawn",
    "eviction": "AnyLeaves",
    "threshold_rule": "MovingMean",
}


def replay_of(changes: dict[str, Any] | None = None, **names: str) -> Replay:
    """The paper's replay with these rules of `own_rules`."""
    paths = {setting: f"{own_rules.__name__}:{name}" for setting, name in names.items()}
    return Replay(ReplayConfig(**{**PAPER, **paths, **(changes or {})}))


def test_an_own_admission_decides_what_is_stored() -> None:
    """Seven groups a step: the first step stores 0 2 4 6, the second 1 3 5."""
    first, second = steps(replay_of(admission="EveryOther"), last=2)
    assert first["record"]["stored"] == [[0, 1], [2, 1], [4, 1], [6, 1]]
    assert second["record"]["stored"] == [[1, 2], [3, 2], [5, 2]]
    replay = replay_of({"require_signal": True}, admission="EveryOther")
    replay.offer(offered(1), 1)
    assert keys(replay.buffer) == keys([group for group in offered(1) if group.has_signal][::2])


def test_an_own_sampling_decides_what_is_drawn() -> None:
    replay = replay_of(sampling="LeastDrawn")
    list(steps(replay, last=8))
    assert max(replay.log.draws[0].reuse) <= min(stored.reuse_count for stored in replay.buffer)


def test_an_own_threshold_decides_what_is_hard() -> None:
    (step,) = steps(replay_of(threshold_rule="MovingMean"), last=1)
    rule = own_rules.MovingMean(ReplayConfig(), None)  # type: ignore[arg-type]
    assert step["record"]["threshold"] == rule.update(offered(1))


def test_an_own_eviction_draws_from_numbers_of_its_own() -> None:
    """With the same admissions, another seed lets others go."""
    runs = [steps(replay_of({"seed": seed}, eviction="AnyLeaves"), last=8) for seed in (1, 2)]
    first, second = ([step["record"]["evicted"] for step in run] for run in runs)
    assert first != second


@pytest.mark.parametrize("stop", [1, 4, 9])
def test_a_run_with_own_rules_goes_on_as_if_never_stopped(stop: int, tmp_path: Path) -> None:
    expected = list(steps(replay_of(**OWN), last=14))
    first, second = replay_of(**OWN), replay_of(**OWN)
    list(steps(first, last=stop))
    save(first, tmp_path)
    load(second, tmp_path)
    assert list(steps(second, stop + 1, 14)) == expected[stop:]
    assert json.dumps(read_record(tmp_path)["rules"]) == json.dumps(first.state_dict()["rules"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"admission": "EveryOther"}, {"admission": "EveryOtherAgain"}),
        ({"admission": "EveryOther"}, {}),
        ({}, OWN),
    ],
    ids=["another class", "a built-in rule", "own rules after built-in ones"],
)
def test_another_rule_starts_anew_and_the_groups_stay(
    before: dict[str, str], after: dict[str, str], tmp_path: Path
) -> None:
    first, second = replay_of(**before), replay_of(**after)
    list(steps(first, last=5))
    save(first, tmp_path)
    load(second, tmp_path)
    assert keys(second.buffer) == keys(first.buffer)
    assert second.state_dict()["rules"] == replay_of(**after).state_dict()["rules"]
    list(steps(second, 6, 9))


@pytest.mark.parametrize("rules", [{"admission": 3}, {"admission": {}}, {"admission": "text"}])
def test_a_damaged_state_of_a_rule_is_refused(rules: Any) -> None:
    replay = replay_of(admission="EveryOther")
    with pytest.raises(ReplayStateError, match="state of a rule is not readable"):
        replay.load_state_dict({**replay.state_dict(), "rules": rules})
