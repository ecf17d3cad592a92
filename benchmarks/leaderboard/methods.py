"""The rows of the leaderboard: what each trains, from which model, and with which settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from benchmarks.leaderboard.plain import Spent, train
from benchmarks.leaderboard.plan import Plan
from benchmarks.leaderboard.reinforced import train_stage2
from benchmarks.leaderboard.starts import Start
from benchmarks.study.arms import ARMS, OURS, settings_of
from benchmarks.study.loop import Settings
from benchmarks.study.worlds import WORLDS
from recipe.rerule.unlearning import presets
from recipe.rerule.unlearning.method import Method
from recipe.rerule.unlearning.task_vectors import combined


@dataclass(frozen=True)
class Trained:
    """A model that a method made, with what that cost (None where it was not made here) and its curves."""

    model: Any
    spent: Spent | None = None
    curves: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry(ABC):
    """A row of the leaderboard.

    Attributes:
        meaning: for the table of methods.
    """

    meaning: str

    tuned = True
    """Whether it has a learning rate; the class says."""

    @abstractmethod
    def settings(self, plan: Plan, rate: float, seed: int) -> dict[str, Any]:
        """All that decides a run on a seed's models, as plain values."""

    @abstractmethod
    def train(self, start: Start, plan: Plan, rate: float) -> Trained:
        """The model of one run."""


@dataclass(frozen=True)
class Untrained(Entry):
    """A model as it is; `model` as of `Start.model`."""

    model: str

    tuned = False

    def settings(self, plan: Plan, rate: float, seed: int) -> dict[str, Any]:
        """The model's name."""
        return {"model": self.model, "seed": seed}

    def train(self, start: Start, plan: Plan, rate: float) -> Trained:
        """The model, read from its folder."""
        return Trained(start.model(self.model))


@dataclass(frozen=True)
class Preset(Entry):
    """A preset of `recipe.rerule.unlearn`, trained from the base model."""

    preset: str

    def settings(self, plan: Plan, rate: float, seed: int) -> dict[str, Any]:
        """The preset's keys, the schedule and the learning rate."""
        method = asdict(presets.load(self.preset))
        return {"method": method, **asdict(plan.schedule), "learning_rate": rate, "seed": seed}

    def train(self, start: Start, plan: Plan, rate: float) -> Trained:
        """The base model, trained on the world's rows."""
        return _trained(start, plan, rate, presets.load(self.preset), start.files)


@dataclass(frozen=True)
class TaskVector(Entry):
    """base - alpha (reinforced - base); the reinforced model is the base model trained on the answers."""

    def settings(self, plan: Plan, rate: float, seed: int) -> dict[str, Any]:
        """alpha, and the settings of the training of the reinforced model."""
        return {"alpha": plan.alpha, **asdict(plan.schedule), "learning_rate": rate, "seed": seed}

    def train(self, start: Start, plan: Plan, rate: float) -> Trained:
        """Reinforce the base model on the answers to forget, and subtract what that added."""
        reinforced = _reinforced(start, plan, rate)
        subtract(start.model("base"), reinforced.model, plan.alpha)
        return reinforced


@dataclass(frozen=True)
class Whp(Preset):
    """A preset whose labels a reinforced model makes too; that model is the one of `TaskVector`."""

    def train(self, start: Start, plan: Plan, rate: float) -> Trained:
        """Reinforce the base model on the answers to forget, and train another copy on the labels."""
        reinforced = _reinforced(start, plan, rate)
        method = presets.load(self.preset)
        trained = _trained(start, plan, rate, method, start.files, reinforced.model)
        costs = [one.spent for one in (reinforced, trained) if one.spent is not None]
        return replace(trained, spent=sum(costs, Spent()))


@dataclass(frozen=True)
class Reinforced(Entry):
    """Stage 2 from the stage-1 model; `arm` of the study."""

    arm: str

    def settings(self, plan: Plan, rate: float, seed: int) -> dict[str, Any]:
        """Of the study's loop."""
        return asdict(self._settings(plan, rate, seed))

    def train(self, start: Start, plan: Plan, rate: float) -> Trained:
        """The stage-1 model, trained by the study's loop."""
        settings = self._settings(plan, rate, start.seed)
        run, seconds = train_stage2(start.data, settings)
        spent = Spent(run.cost.trained, run.cost.tokens, seconds, run.generated)
        return Trained(run.policy.model, spent, run.rewards)

    def _settings(self, plan: Plan, rate: float, seed: int) -> Settings:
        return replace(settings_of(ARMS[self.arm], WORLDS[plan.world], seed), learning_rate=rate)


def subtract(base: Any, reinforced: Any, alpha: float) -> None:
    """Make `reinforced` base - alpha (reinforced - base), weight by weight."""
    before = dict(base.named_parameters())
    with torch.no_grad():
        for name, after in reinforced.named_parameters():
            after.copy_(combined(before[name], after, alpha))


def _reinforced(start: Start, plan: Plan, rate: float) -> Trained:
    """The base model, trained further on the answers to forget by their NLL alone."""
    answers = {"alternate": start.files["forget"]}
    return _trained(start, plan, rate, presets.load("rejection_steering"), answers)


def _trained(
    start: Start, plan: Plan, rate: float, method: Method, files: Any, reinforced: Any = None
) -> Trained:
    model = start.model("base")
    how = (start.tokenizer, rate, plan.schedule, start.seed)
    losses, spent = train(model, method, files, *how, reinforced)
    return Trained(model, spent, {"loss": losses})


_PRESETS = {
    "ga": "gradient ascent",
    "ga_gdr": "gradient ascent + NLL(retain)",
    "ga_klr": "gradient ascent + KL(retain)",
    "npo": "NPO",
    "npo_gdr": "NPO + NLL(retain)",
    "npo_klr": "NPO + KL(retain)",
    "simnpo": "SimNPO",
    "simnpo_gdr": "SimNPO + NLL(retain)",
    "simnpo_klr": "SimNPO + KL(retain)",
    "dpo": "DPO, refusals against answers",
    "dpo_gdr": "DPO + NLL(retain)",
    "po": "NLL(refusal) + NLL(retain)",
    "mismatch": "NLL(answer of another row) + NLL(retain)",
    "llmu": "gradient ascent + NLL(random answers) + KL(retain)",
    "flat": "FLAT, Pearson",
    "sga": "smoothed gradient ascent",
    "rejection_steering": "NLL(refusal)",
}
METHODS: dict[str, Entry] = {
    "base": Untrained("the model that is to forget", "base"),
    "retain_model": Untrained("never trained on what is to be forgotten", "retain_model"),
    "stage1": Untrained("RULE's stage 1, from which the next three start", "stage1"),
    "rule": Reinforced("RULE", "rule"),
    "rerule": Reinforced("ReRULE, the paper's replay", "rerule"),
    OURS: Reinforced("the recommended replay", OURS),
    **{name: Preset(meaning, name) for name, meaning in _PRESETS.items()},
    "task_vector": TaskVector("task arithmetic"),
    # Not of the first plan; docs/leaderboard.md says so.
    "whp": Whp("Who's Harry Potter", "whp"),
}
"""By name, in the order of the table."""
