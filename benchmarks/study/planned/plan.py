"""What was fixed before the first run; plan.md says it in sentences, and its hash is kept with each run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.study.arms import ARMS, OURS, Arm
from benchmarks.study.ideas import IDEAS as LOOPS
from benchmarks.study.loop import Run
from benchmarks.study.planned.saving import SAVINGS, SavingRun
from benchmarks.study.planned.tries import Epochs, FourEpochs, Resampled

PLAN = Path(__file__).resolve().parents[1] / "plan.md"
WORLDS = ("many", "tofu")
RATES = (1.0, 2.0, 4.0)
"""Times a world's learning rate."""
TUNING_BASES = (201, 202)
TUNING_SEEDS = (1,)
COUNTED_BASES = tuple(range(211, 219))
COUNTED_SEEDS = (1, 2)
SHARE = 0.6
"""Of the tokens that RULE generates, which a saving idea may generate."""
VALIDATIONS = 10
"""Of a run, at equal shares of its budget."""

SECOND_LOOK = 2
"""How many of the best ideas are also run at the other rates."""

Unit = Literal["steps", "compute", "generated"]


@dataclass(frozen=True)
class PlannedArm:
    """One arm.

    Attributes:
        meaning: for tables.
        arm: changed settings, as in benchmarks/study/arms.py.
        until: what ends a run: the world's "steps"; the "compute" of the recommended replay's run of the same
            start; or SHARE of the tokens "generated" by RULE's run of the same start.
    """

    meaning: str
    arm: Arm
    until: Unit = "steps"


_SETTINGS = Mapping[str, Any]
_OFF = {"enable": False}
_NEWEST = ARMS[OURS].replay
_FROM_THE_START = {"min_groups": 1, "warmup_steps": 0}
_ANY_SIGNAL = {"threshold": 1.0, "require_signal": True, **_FROM_THE_START}


def _again(name: str, until: Unit = "steps", meaning: str = "") -> PlannedArm:
    """An arm of the earlier study."""
    return PlannedArm(meaning or ARMS[name].meaning, ARMS[name], until)


def _plain(meaning: str, until: Unit, settings: _SETTINGS, replay: _SETTINGS = _OFF) -> PlannedArm:
    return PlannedArm(meaning, Arm(meaning, replay, settings=settings), until)


def _saving(name: str, meaning: str, replay: _SETTINGS) -> PlannedArm:
    return _plain(meaning, "generated", {"idea": name}, {**replay, **_FROM_THE_START})


COUNTED = {
    "rule": _again("rule"),
    "equal_updates": _again("equal_updates"),
    "equal_compute": PlannedArm("RULE, to equal compute", Arm("", _OFF), "compute"),
    "rerule": _again("rerule", meaning="the paper's replay, scaled"),
    OURS: _again(OURS, meaning="the recommended replay"),
    "current_equal_compute": PlannedArm(
        "extra update on the step's own groups, selected as the recommended replay selects, to equal compute",
        ARMS["quantile_current"],
        "compute",
    ),
}
EXTRAS = {
    "epochs2": _plain("RULE, 2 PPO epochs", "compute", {"idea": "epochs2"}),
    "epochs4": _plain("RULE, 4 PPO epochs", "compute", {"idea": "epochs4"}),
    "batch32": _plain("RULE, 32 prompts a step", "compute", {"prompts": 32}),
    "rollouts16": _plain("RULE, 16 responses a prompt", "compute", {"rollouts": 16}),
    "resampled": _plain("RULE, groups without signal resampled (DAPO)", "compute", {"idea": "resampled"}),
    "fresh_newest": _plain(
        "recommended replay, its prompts answered anew", "compute", {"idea": "fresh"}, _NEWEST
    ),
}
IDEAS = {
    "half": _saving("half", "8 new prompts, 8 newest stored groups", _NEWEST),
    "quarter": _saving("quarter", "4 new prompts, 12 newest stored groups", _NEWEST),
    "half_filled": _saving(
        "half_filled", "as half, and the places of new groups without signal filled", _NEWEST
    ),
    "quarter_filled": _saving(
        "quarter_filled", "as quarter, and the places of new groups without signal filled", _NEWEST
    ),
    "half_priority": _saving(
        "half_priority", "8 new prompts, 8 stored groups by signal, less with use and age", _ANY_SIGNAL
    ),
    "quarter_priority": _saving(
        "quarter_priority", "4 new prompts, 12 stored groups by signal, less with use and age", _ANY_SIGNAL
    ),
    "half_rollouts": _saving(
        "half_rollouts",
        "8 new prompts, 64 single responses of the last 8 steps, by size of advantage",
        {**_ANY_SIGNAL, "max_staleness": 8},
    ),
    "quarter_rollouts": _saving(
        "quarter_rollouts",
        "4 new prompts, 96 single responses of the last 8 steps, by size of advantage",
        {**_ANY_SIGNAL, "max_staleness": 8},
    ),
    "half_separate": _plain(
        "8 new prompts, then the recommended replay's own update on 8 groups",
        "generated",
        {"prompts": 8},
        {**_NEWEST, **_FROM_THE_START, "groups_per_update": 8},
    ),
}
CONTROLS = {
    "short": _plain("RULE, stopped early", "generated", {}),
    "half_alone": _plain("RULE, 8 prompts a step, no replay", "generated", {"prompts": 8}),
    "half_epochs": _plain(
        "RULE, 8 prompts a step, 2 PPO epochs, no replay", "generated", {"prompts": 8, "idea": "epochs2"}
    ),
}
PLANNED = {**COUNTED, **EXTRAS, **IDEAS, **CONTROLS}
RUNS: dict[str, type[Run]] = {
    **LOOPS,
    **dict.fromkeys(SAVINGS, SavingRun),
    "epochs2": Epochs,
    "epochs4": FourEpochs,
    "resampled": Resampled,
}
"""By `Settings.idea`."""

_PER_ARM = len(TUNING_BASES) * len(TUNING_SEEDS)
_TUNED = _PER_ARM * (len(COUNTED) * len(RATES) + len(EXTRAS))
_TRIED = _PER_ARM * (len(IDEAS) + len(CONTROLS) + SECOND_LOOK * (len(RATES) - 1))
RUNS_TO_CHOOSE = {"many": _TUNED + _TRIED, "tofu": _TUNED}
RUNS_THAT_COUNT = len(COUNTED_BASES) * len(COUNTED_SEEDS) * (len(COUNTED) + 1)
"""Of a world: every arm that counts, and the idea that is confirmed."""

PRIMARY = (OURS, "equal_compute")
SECONDARY = (
    (OURS, "rule"),
    (OURS, "equal_updates"),
    (OURS, "rerule"),
    (OURS, "current_equal_compute"),
    ("rerule", "rule"),
    ("rerule", "equal_updates"),
    ("rerule", "equal_compute"),
)
"""Pairs whose p-values are corrected together, by Holm."""


def plan_hash(plan: Path = PLAN) -> str:
    """Of a plan's file: the first 12 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(plan.read_bytes()).hexdigest()[:12]
