"""Each replay rule of replay_cases.py, made, run and resumed as its case says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.replay import Replay, ReplayConfig, load, save
from recipe.rerule.replay.custom import build_rules
from tests.refused.replay_cases import CASES, MADE, RESUMED, RuleCase
from tests.replay.groups import PAPER_RULES, make_group

SMALL = {**PAPER_RULES, "capacity": 4, "groups_per_update": 2, "min_groups": 2, "warmup_steps": 1}


def config_of(case: RuleCase) -> ReplayConfig:
    settings: dict[str, Any] = {**SMALL, case.setting: case.path}
    return ReplayConfig(**settings)


def run(config: ReplayConfig, folder: Path) -> Replay:
    """Three steps of two groups in a buffer of four, saved at the end."""
    replay = Replay(config)
    for step in range(1, 4):
        replay.offer([make_group(index, step, rewards=[0.0, 0.5]) for index in range(2)], step)
        replay.draw(step)
    save(replay, folder / "replay")
    return replay


def resumed(config: ReplayConfig, folder: Path) -> None:
    run(config, folder)
    replay = Replay(config)
    load(replay, folder / "replay")
    (rule,) = replay._rules.values()
    assert rule.rule.seen == 3


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: RuleCase) -> Iterator[None]:
    """The case's `my_rules`, which Python finds during the test alone."""
    if case.source:
        (tmp_path / "my_rules.py").write_text(case.source)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_rules", None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.group}: {case.name}")
@pytest.mark.usefixtures("own_module")
def test_a_rule(case: RuleCase, tmp_path: Path) -> None:
    steps: dict[str, Callable[[], object]] = {
        MADE: lambda: build_rules(config_of(case)),
        RESUMED: lambda: resumed(config_of(case), tmp_path),
    }
    attempt = steps.get(case.group, lambda: run(config_of(case), tmp_path))
    if case.outcome == "valid":
        attempt()
        return
    with pytest.raises(ValueError) as raised:  # noqa: PT011  (the line itself is what is tested)
        attempt()
    line = str(raised.value)
    assert "\n" not in line
    assert f"replay.{case.setting}" in line
    assert case.path in line
    assert case.named in line
