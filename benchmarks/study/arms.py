"""The arms of the study: what each changes of a world's settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.study.loop import Settings
from benchmarks.study.worlds import StudyWorld
from recipe.rerule.replay import ReplayConfig


@dataclass(frozen=True)
class Arm:
    """One arm.

    Attributes:
        meaning: for tables.
        replay: changed settings of `ReplayConfig`, by name.
        trains: false: the stage-1 model as it is.
        compute_of: the run ends once it has cost what this arm's run of the same seed has.
        settings: changed `loop.Settings`, by name.
        learning_rate: times the world's.
    """

    meaning: str
    replay: Mapping[str, Any] = field(default_factory=dict)
    trains: bool = True
    compute_of: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: float = 1.0


_OFF = {"enable": False}
_LOWER_HALF = {
    "threshold_rule": "quantile",
    "threshold_quantile": 0.5,
    "threshold_window": 64,
    "require_signal": True,
}
ARMS = {
    "stage1": Arm("rejection steering alone", _OFF, trains=False),
    "rule": Arm("RULE", _OFF),
    "rerule": Arm("ReRULE at the paper's settings, scaled"),
    "tau0.4": Arm("ReRULE, tau 0.4", {"threshold": 0.4}),
    "tau1.0": Arm("ReRULE, tau 1.0", {"threshold": 1.0}),
    "random": Arm("random storage, as many groups as are hard", {"admission": "random"}),
    "equal_updates": Arm("RULE, its update twice once replay would start", {"update": "on_policy"}),
    "equal_compute": Arm("RULE, going on to ReRULE's compute", _OFF, compute_of="rerule"),
    "higher_rate": Arm("RULE, learning rate x 1.5", _OFF, learning_rate=1.5),
    "signal": Arm("ReRULE, groups with signal only", {"require_signal": True}),
    "prioritized": Arm("ReRULE, prioritised sampling", {"sampling": "prioritized"}),
    "sequence": Arm("ReRULE, sequence ratio", {"importance": {"level": "sequence"}}),
    "unclipped": Arm("ReRULE, ratio not clipped", {"importance": {"clip_low": 0.0, "clip_high": 1e6}}),
    "unnormalized": Arm("ReRULE, weights not normalised", {"importance": {"normalize": False}}),
    "no_kl": Arm("ReRULE, no KL in the replay loss", {"use_kl_loss": False}),
    # Ideas of ours.
    "recent": Arm("the newest hard groups", {"sampling": "recent"}),
    "recent_signal": Arm(
        "the newest hard groups with signal", {"require_signal": True, "sampling": "recent"}
    ),
    "recent_0.8": Arm(
        "the newest groups with signal below 0.8",
        {"threshold": 0.8, "require_signal": True, "sampling": "recent"},
    ),
    "quantile_newest": Arm(
        "the newest groups with signal, of the lower half",
        {**_LOWER_HALF, "sampling": "recent"},
    ),
    # How much of the one above is replay, and how much the choice among the step's own groups.
    "quantile_current": Arm(
        "this step's groups with signal, of the lower half",
        {**_LOWER_HALF, "max_staleness": 0, "min_groups": 1},
    ),
    "prioritized_newest": Arm(
        "groups with signal, by its strength, halved every 2 steps",
        {"threshold": 1.0, "require_signal": True, "sampling": "prioritized", "priority_half_life": 2.0},
    ),
    "informative": Arm("every group with signal", {"threshold": 1.0, "require_signal": True}),
    "informative_newest": Arm(
        "the newest groups with signal", {"threshold": 1.0, "require_signal": True, "sampling": "recent"}
    ),
    "informative_no_lower_bound": Arm(
        "every group with signal, ratios bounded above alone",
        {"threshold": 1.0, "require_signal": True, "importance": {"clip_low": 0.0}},
    ),
    "informative_fresh": Arm(
        "every group with signal, of the last 8 steps",
        {"threshold": 1.0, "require_signal": True, "max_staleness": 8},
    ),
    "second_moment": Arm(
        "ratios bounded by their second moment", {"importance": {"truncation": "second_moment"}}
    ),
    "no_lower_bound": Arm("ratios bounded above alone", {"importance": {"clip_low": 0.0}}),
    "positive_only": Arm("responses above their group's mean alone", settings={"idea": "positive_only"}),
    "pooled": Arm("advantages against the side's running mean", settings={"idea": "pooled"}),
    "balanced": Arm("as many groups of each side", settings={"idea": "balanced"}),
    "balanced_signal": Arm(
        "as many groups of each side, with signal only",
        {"require_signal": True},
        settings={"idea": "balanced"},
    ),
    "trust_region": Arm(
        "every group with signal; no gradient where PPO's clip would end it",
        {"threshold": 1.0, "require_signal": True},
        settings={"idea": "trust_region"},
    ),
    "reestimated": Arm(
        "every group with signal; advantages re-estimated for the current policy",
        {"threshold": 1.0, "require_signal": True},
        settings={"idea": "reestimated"},
    ),
    "filled": Arm(
        "RULE's one update; earlier groups with signal in the places of groups without",
        {"threshold": 1.0, "require_signal": True},
        settings={"idea": "filled"},
    ),
    "filled_newest": Arm(
        "RULE's one update; the newest groups with signal in those places",
        {"threshold": 1.0, "require_signal": True, "sampling": "recent", "groups_per_update": 32},
        settings={"idea": "filled"},
    ),
    "merged": Arm("both losses in one optimiser step", settings={"idea": "merged"}),
    "fresh": Arm("stored prompts answered anew", settings={"idea": "fresh"}),
}

OURS = "quantile_newest"
"""The idea with the best overall in the mean of "many" and "slow", on the seeds from CHOOSING_SEEDS on."""
CHOOSING_SEEDS = 101
"""From this seed on runs are for choosing among ideas; what is claimed rests on the seeds below."""
MAIN = ("rule", "rerule", "random", "equal_updates", "equal_compute", OURS)
COMPARED = tuple((arm, base) for arm in ("rerule", OURS) for base in MAIN[:-1] if arm != base)
"""The pairs of arms that the questions are about."""
EXPLAINING = ((OURS, "quantile_current"), ("quantile_current", "equal_updates"))
"""What ours adds to equal updates in two parts: replay, and the choice of groups."""


def settings_of(arm: Arm, world: StudyWorld, seed: int, compute: float | None = None) -> Settings:
    """An arm's settings on a world; `seed` decides data order, responses and draws."""
    replay = ReplayConfig.from_dict({**world.replay, "seed": seed, **arm.replay})
    steps = {} if arm.trains else {"steps": 0}
    settings = Settings(
        **{**world.settings, **arm.settings, **steps}, compute=compute, seed=seed, replay=replay
    )
    return dataclasses.replace(settings, learning_rate=arm.learning_rate * settings.learning_rate)
