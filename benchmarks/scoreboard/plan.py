"""What was fixed before the first run: methods, worlds, attacks, and the numbers that are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.study.arms import OURS
from recipe.rerule.reporting.attacks.results import CONTROL, ORIGINAL

BASE, NEVER_KNEW = "base", "retain_model"
REFERENCES = {ORIGINAL: BASE, CONTROL: NEVER_KNEW}
"""Name in the results of attacks: row. Every method is compared with them, and neither competes."""
METHODS = (
    "stage1", "rule", "rerule", OURS,
    "ga_gdr", "npo_gdr", "simnpo_gdr", "flat", "task_vector", "whp",
    "dpo_gdr", "po",
)  # fmt: skip
"""Reinforcement with its first stage; classical; trained to refuse. Each is a method of the leaderboard."""
FIRST_SEED = 24
SEEDS = 6
"""Worlds 24 to 29. The leaderboard's own are 20, where every method is tuned, to 23."""
ATTACKS = ("default",)
"""Of `evaluate attack`, under its quick budget."""
LEVEL = 0.95


@dataclass(frozen=True)
class Axis:
    """A number that methods are compared by, one for each method and world.

    Attributes:
        name: in files.
        label: heading of its column.
        aim: which is better.
        measures: of `leaderboard.measures`, whose mean it is; () where it is of an attack.
        attack: whose E it is: the score of the method less that of the never-knew model, mean over facts.
    """

    name: str
    label: str
    aim: Literal["low", "high"]
    measures: tuple[str, ...] = ()
    attack: str = ""


FORGET = Axis("forget", "forget recall", "low", ("forget/recall",))
KEPT = Axis("kept", "kept recall", "high", ("retain/recall", "retain_unseen/recall"))
PREFILL = Axis("prefill", "E prefill", "low", attack="prefill/affirmative")
SAMPLES = Axis("samples", "E best of 16", "low", attack="samples/max_16")
FOUR_BITS = Axis("four_bits", "E 4 bits", "low", attack="quantise_4")
RELEARNING = Axis("relearning", "E other facts, 8 steps", "low", attack="relearn_forget_half/8")
RETAIN_ROWS = Axis("retain_rows", "E retain rows, 8 steps", "low", attack="relearn_retain/8")
EXTRACTION = Axis("extraction", "E extraction strength", "low", attack="memorisation/extraction_strength")
AXES = (FORGET, KEPT, PREFILL, SAMPLES, FOUR_BITS, RELEARNING, RETAIN_ROWS, EXTRACTION)
FRONTS = tuple((axis, KEPT) for axis in (FORGET, SAMPLES, RELEARNING, EXTRACTION))
"""Pairs of numbers that a method trades for each other."""
COSTS = {"trained": "k tokens trained", "generated": "k tokens generated", "seconds": "seconds"}
"""Of the leaderboard's runs; tokens are shown in thousands."""
