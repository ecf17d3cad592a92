"""Records of finished runs that have, or have not, learnt something; each is tried by test_custom.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.refused.cases import Case

STAGE1, STAGE2 = "finished runs of stage 1", "finished runs of stage 2"
RISING = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True)
class RunCase(Case):
    """A finished run.

    warning: what the one warning says, "" for none.
    losses: stage 1's, step by step.
    forget: stage 2's mean reward of the forget side, step by step.
    changes: what else of a stage 2 differs from a run that learns.
    """

    warning: str = ""
    losses: tuple[float, ...] = ()
    forget: tuple[float, ...] = RISING
    changes: Mapping[str, Any] = field(default_factory=dict)


CASES: list[Case] = [
    RunCase(
        STAGE1,
        "the default rate on 13 rows",
        "warned",
        "8.2 in the first quarter of the steps, 8.17 in the last",
        losses=(8.20, 7.69, 8.17),
    ),
    RunCase(
        STAGE1,
        "loss unchanged",
        "warned",
        "2 in the first quarter of the steps, 2 in the last",
        losses=(2.0,) * 8,
    ),
    RunCase(STAGE1, "loss 2.5 % lower", "warned", "hardly changed", losses=(2.0, 2.0, 1.95, 1.95)),
    RunCase(STAGE1, "loss 15 % lower", "valid", losses=(2.0, 1.9, 1.8, 1.7)),
    RunCase(STAGE1, "loss that rises before it falls", "valid", losses=(8.0, 9.0, 5.0, 4.0)),
    RunCase(STAGE2, "reward that rises", "valid"),
    RunCase(
        STAGE2,
        "no reward on the forget side",
        "warned",
        "no response to a forget prompt earned any reward in 3 steps",
        forget=(0.0,) * 3,
    ),
    RunCase(
        STAGE2,
        "reward without a refusal",
        "warned",
        "no response to a forget prompt was a refusal in 8 steps",
        changes={"refused": 0.0},
    ),
    RunCase(
        STAGE2,
        "reward that does not rise",
        "warned",
        "the reward of forget prompts did not rise: 0.20 in the first quarter of the steps, 0.20",
        forget=(0.2,) * 8,
    ),
    RunCase(
        STAGE2,
        "no differing rewards",
        "warned",
        "in no step did the responses to one prompt earn different rewards",
        changes={"no_signal": 1.0},
    ),
    RunCase(
        STAGE2,
        "no replay update",
        "warned",
        "no replay update happened in 8 steps: the buffer held 7 groups at most, where replay.min_groups "
        "is 32 and replay.warmup_steps 15",
        changes={"updates": 0.0, "size": 7},
    ),
    RunCase(STAGE2, "high reward from the first step on", "valid", forget=(0.9,) * 8),
    RunCase(STAGE2, "too short to say that the reward does not rise", "valid", forget=(0.2,) * 3),
    RunCase(STAGE2, "no replay asked for", "valid", changes={"updates": 0.0, "enable": False}),
    RunCase(STAGE2, "the equal-update control", "valid", changes={"updates": 0.0, "update": "on_policy"}),
]
