"""The models and attacks of one seed: what is there is used again, what is missing is made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks.leaderboard.methods import METHODS, Trained
from benchmarks.leaderboard.plan import Plan
from benchmarks.leaderboard.runs import Leaderboard, tuning_runs
from benchmarks.leaderboard.starts import Start, prepare
from benchmarks.study.runs import run_file
from benchmarks.study.worlds import WORLDS
from benchmarks.survival.plan import ATTACKS, BUDGET, MODELS
from data_prep.atomic import new_folder
from data_prep.ownership import Kind, stamp_folder
from recipe.rerule.evaluation.attack_command.output import RESULTS
from recipe.rerule.evaluation.output import json_text
from recipe.rerule.process.progress import Progress
from recipe.rerule.reporting.attacks.results import CONTROL

KIND = Kind("rerule/survival", "survival.json", lambda _: None)
"""A model of a leaderboard's method."""


class AttackError(ValueError):
    """`evaluate attack` failed; it has said why."""


@dataclass
class Survival:
    """Attacks on the models of a leaderboard, kept below the leaderboard's folder.

    Attributes:
        out: a folder of `benchmarks.leaderboard`, with runs or empty.
        platform: of `evaluate attack`.
        models: name in the results to method of the leaderboard.
        attacks: of `evaluate attack`.
        progress: told of each run for tuning, model and seed's attacks that is made.
    """

    plan: Plan
    out: Path
    platform: str
    progress: Progress = field(default_factory=lambda: Progress("survival"))
    models: Mapping[str, str] = field(default_factory=lambda: MODELS)
    attacks: Sequence[str] = ATTACKS

    def folder(self, seed: int) -> Path:
        """Where a seed's world, models and attacks are."""
        return self.out / self.plan.world / f"seed-{seed}"

    def missing(self, seeds: Iterable[int]) -> int:
        """How many runs for tuning, models and seeds' attacks are to be made."""
        tuning = tuning_runs(self.plan, list(self.models.values()))
        untried = [not run_file(self.out, self.plan.world, run.arm, run.seed).is_file() for run in tuning]
        left = [seed for seed in seeds if not self._is_attacked(seed)]
        unmade = [not self._is_made(seed, method) for seed in left for method in self.models.values()]
        return (sum(untried) if any(unmade) else 0) + sum(unmade) + len(left)

    def attack(self, seed: int) -> Path:
        """The folder of the seed's attacks. Raises ValueError, one line, where one of the steps fails."""
        attacks = self.folder(seed) / "attacks"
        if self._is_attacked(seed):
            return attacks
        start = prepare(WORLDS[self.plan.world], seed, self.folder(seed))
        models = {name: self._model(start, method) for name, method in self.models.items()}
        self.progress.doing(f"attacks of seed {seed}")
        command = attack_command(start.folder, models, self.platform, attacks, self.attacks)
        done = subprocess.run(command, check=False)
        if done.returncode:
            raise AttackError(f"evaluate attack ended with exit code {done.returncode} on seed {seed}")
        self.progress.advance()
        return attacks

    @cached_property
    def _leaderboard(self) -> Leaderboard:
        return Leaderboard(self.plan, self.out, self.progress)

    def _is_attacked(self, seed: int) -> bool:
        return (self.folder(seed) / "attacks" / RESULTS).is_file()

    def _model_folder(self, seed: int, method: str) -> Path:
        return self.folder(seed) / "models" / method

    def _is_made(self, seed: int, method: str) -> bool:
        return (self._model_folder(seed, method) / KIND.marker).is_file()

    def _model(self, start: Start, method: str) -> Path:
        """The folder of a method's model on a seed, trained at the method's own learning rate."""
        folder = self._model_folder(start.seed, method)
        if self._is_made(start.seed, method):
            return folder
        rate = self._leaderboard.tune([method])[method]
        self.progress.doing(f"{method} of seed {start.seed}")
        trained = self._train(start, method, rate)
        with new_folder(folder, overwrite=False, kind=KIND) as draft:
            trained.model.save_pretrained(draft)
            start.tokenizer.save_pretrained(draft)
            made = {"method": method, "learning_rate": rate, "seed": start.seed}
            (draft / KIND.marker).write_text(json_text({**stamp_folder(KIND, draft), **made}))
        self.progress.advance()
        return folder

    def _train(self, start: Start, method: str, rate: float) -> Trained:
        return METHODS[method].train(start, self.plan, rate)


def attack_command(
    world: Path, models: Mapping[str, Path], platform: str, out: Path, attacks: Sequence[str] = ATTACKS
) -> Sequence[str]:
    """`evaluate attack` on the models; what is finished stays in a cache if it is killed."""
    named = [
        word for name, path in models.items() if name != CONTROL for word in ("--model", f"{name}={path}")
    ]
    return [
        *(sys.executable, "-m", "recipe.rerule.evaluate", "attack", "--platform", platform),
        *("--probes", f"{world / 'probes.parquet'}", "--train", f"{world / 'train.parquet'}"),
        *named,
        *("--control", f"{models[CONTROL]}", "--attacks", *attacks, "--budget", BUDGET),
        *("--cache", f"{out.with_name('attack_cache')}", "--out", f"{out}", "--overwrite"),
    ]
