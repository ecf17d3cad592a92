"""The models and attacks of one world. A model is trained once, and measured before it is attacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.leaderboard.methods import Trained
from benchmarks.leaderboard.plan import Plan
from benchmarks.leaderboard.runs import Planned
from benchmarks.leaderboard.starts import Start
from benchmarks.scoreboard.plan import ATTACKS, REFERENCES
from benchmarks.study.runs import StudyRun
from benchmarks.survival.runs import Survival
from recipe.rerule.evaluation.attack_command.output import RESULTS
from recipe.rerule.process.json_input import read_json
from recipe.rerule.process.progress import Progress
from recipe.rerule.reporting.attacks.results import BEFORE


@dataclass
class Scoreboard(Survival):
    """Attacks on models whose measures are kept as the leaderboard keeps them."""

    def measured(self, seed: int) -> list[StudyRun]:
        """The run of every method on a world; made where only its model is there."""
        methods = list(self.models.values())
        rates = self._leaderboard.tune(methods)
        return [self._leaderboard.run(Planned(method, rates[method], seed)) for method in methods]

    def _is_attacked(self, seed: int) -> bool:
        """Whether the attacks on the world include all these models."""
        file = self.folder(seed) / "attacks" / RESULTS
        return file.is_file() and self.models.keys() <= read_json(file)[BEFORE].keys()

    def _train(self, start: Start, method: str, rate: float) -> Trained:
        _, trained = self._leaderboard.make(Planned(method, rate, start.seed))
        return trained


def scoreboard(
    plan: Plan, methods: Sequence[str], out: Path, platform: str, progress: Progress
) -> Scoreboard:
    """The scoreboard of these methods and of both references in a folder."""
    models = {**REFERENCES, **{name: name for name in methods if name not in REFERENCES.values()}}
    return Scoreboard(plan, out, platform, progress, models, ATTACKS)
