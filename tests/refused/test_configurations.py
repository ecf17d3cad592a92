"""Every case of settings, sizes and unlearning, on the configuration that Hydra composes."""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path

import pytest

from recipe.rerule.preflight import checks
from tests.refused.configurations import (
    RUNS,
    STAGE2,
    UNLEARN,
    SettingsCase,
    build,
    composed,
    findings,
)
from tests.refused.settings_cases import read

DOCS = Path(__file__).resolve().parents[2] / "docs"
CASES = list(read())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("configurations"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.group}: {case.name}")
def test_a_configuration_ends_as_its_case_says_and_no_check_writes_anything(
    case: SettingsCase, folder: Path
) -> None:
    before = sorted(folder.rglob("*"))
    errors, warnings = findings(case, folder)
    if case.outcome == "refused":
        (line,) = errors
        assert case.named in line
        assert "\n" not in line
    else:
        assert errors == []
        assert len(warnings) == (case.outcome == "warned"), warnings
        assert all(case.named in line for line in warnings)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("group", [group for group in RUNS if group != UNLEARN])
def test_the_unchanged_run_is_accepted(group: str, folder: Path) -> None:
    assert findings(SettingsCase(group, "unchanged", "valid"), folder) == ([], [])


def test_a_library_may_register_a_loss_and_an_agent_loop(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings_test_library.py").write_text(
        "from verl.experimental.agent_loop import agent_loop, single_turn_agent_loop\n"
        "from verl.trainer.ppo.core_algos import register_policy_loss\n"
        "@agent_loop.register('settings_test_loop')\n"
        "class Loop(single_turn_agent_loop.SingleTurnAgentLoop): pass\n"
        "@register_policy_loss('settings_test_loss')\n"
        "def loss(*arguments, **more): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    values = {
        "actor_rollout_ref.rollout.agent.default_agent_loop": "settings_test_loop",
        "actor_rollout_ref.actor.policy_loss.loss_mode": "settings_test_loss",
    }
    (error,), _ = findings(SettingsCase(STAGE2, "unknown", "refused", values), folder)
    assert "settings_test_loop" in error
    values |= {"actor_rollout_ref.model.external_lib": "settings_test_library"}
    assert findings(SettingsCase(STAGE2, "registered", "valid", values), folder) == ([], [])


def test_the_line_in_the_documentation_is_what_is_printed(folder: Path) -> None:
    config = copy.deepcopy(composed(STAGE2, folder))
    config.actor_rollout_ref.actor.optim.lr = math.nan
    (error,) = checks.findings(checks.stage2, config)
    assert f"\n    error: {error.line}\n" in (DOCS / "configuration.md").read_text("utf-8")


def test_combinations_that_the_documentation_calls_refused_are_cases() -> None:
    page = (DOCS / "running.md").read_text("utf-8")
    section = page.split("\n## What runs where\n")[1].split("\n## ")[0]
    last = [line.split("|")[-2].strip() for line in section.splitlines() if "|" in line]
    cells = [cell for cell in last if cell.startswith("refused: ") and "test_" not in cell]
    assert len(cells) > 8
    tried = " ".join(case.name + case.named for case in CASES if case.outcome == "refused")
    for cell in cells:
        assert re.findall("`([^`]+)`", cell)[0].split("=")[0] in tried, cell
