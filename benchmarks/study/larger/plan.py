"""What was fixed before the first run; plan.md says it in sentences, and its hash is kept with each run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.study.arms import OURS
from benchmarks.study.differences import Pair
from benchmarks.study.planned.plan import COUNTED
from benchmarks.study.worlds import WORLDS, StudyWorld
from data_prep.world.config import WorldConfig
from data_prep.world.stage1 import Steering

PLAN = Path(__file__).with_name("plan.md")
TUNING_BASE = 301
COUNTED_BASES = (311, 312, 313, 314)
SEED = 1
"""Of each run: data order, responses and draws. What differs between models is the base."""
RATES = (0.5, 1.0, 2.0)
"""Times the learning rate of the world `tofu`."""
ARMS = {name: COUNTED[name] for name in ("rule", "equal_updates", OURS)}
TUNED = "rule"
"""The arm that chooses the rate of all."""
LEAST_RECALL = 0.8
"""Of a base model on the forget probes, below which it is taken to be untrained."""
STEERING_RATES = (2.5e-4, 5e-4, 1e-3)
"""Of stage 1; the lowest that makes a model refuse enough is taken."""
LEAST_REFUSED = 0.9
"""Share of the forget probes that the stage-1 model for tuning has to refuse."""
PRIMARY: Pair = (OURS, "equal_updates")
SECONDARY: tuple[Pair, ...] = ((OURS, "rule"), ("equal_updates", "rule"))


@dataclass(frozen=True)
class Split:
    """Authors in their places, 20 rows each.

    Attributes:
        forget_more: to forget in addition to those of forget01_perturbed: the last of retain_perturbed.
        retain, unseen: the first of retain_perturbed, and those after them: to keep, with paraphrases; the
            latter are in no stage and in nothing but the base model and the probes.
        others: the first of retain99_train600: to keep, without paraphrases and so without probes.
        prompts_of_others: of each of them, how many questions are prompts of stage 2.
        unknown: questions about invented people, which the base model learns to refuse.
    """

    forget_more: int = 2
    retain: int = 9
    unseen: int = 9
    others: int = 30
    prompts_of_others: int = 2
    unknown: int = 100


SPLIT = Split()
_TOFU = WORLDS["tofu"]
_SMALL = WorldConfig(
    vocab_size=4000,
    hidden_size=384,
    layers=5,
    heads=6,
    intermediate_size=1024,
    batch_size=32,
    epochs=20,
)
_WORLD = replace(
    _TOFU,
    config=_SMALL,
    steering=Steering(epochs=2),
    settings={**_TOFU.settings, "steps": 40},
    tofu=None,
)
SIZES: dict[str, StudyWorld] = {
    "10m": _WORLD,
    "100m": replace(
        _WORLD,
        config=replace(
            _SMALL,
            hidden_size=768,
            layers=14,
            heads=12,
            intermediate_size=2048,
            learning_rate=1e-3,
            matrix_learning_rate=0.01,
        ),
    ),
}
"""10.4 and 102 million parameters. Replay and the loop have the settings of `tofu`, with more steps.

Stage 1's learning rate is chosen, see STEERING_RATES.
"""
