"""The runs of a leaderboard: each kept in a file as it ends, as the study keeps its own, and not done twice.

A run of method M at learning rate R is the study's run of "arm" `M@R`; that of a method without a learning
rate is `M`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.leaderboard.measures import measure
from benchmarks.leaderboard.methods import METHODS, Trained
from benchmarks.leaderboard.plan import Plan
from benchmarks.leaderboard.starts import Start, prepare
from benchmarks.leaderboard.tuning import chosen_rate
from benchmarks.study.runs import StudyRun, check_model, commit, kept_with, read_run, run_file, write_run
from benchmarks.study.worlds import WORLDS
from data_prep.contract import Row
from recipe.rerule.minimal import Metrics
from recipe.rerule.process.progress import Progress

NO_RATE = 0.0
"""In place of a learning rate, of methods that have none."""


@dataclass(frozen=True)
class Planned:
    """A run that a leaderboard consists of."""

    method: str
    rate: float
    seed: int

    @property
    def arm(self) -> str:
        """Its name among the study's runs."""
        return f"{self.method}@{self.rate:g}" if METHODS[self.method].tuned else self.method


@dataclass
class Leaderboard:
    """The runs in a folder; worlds and models are made only where a run is missing.

    Attributes:
        out: the folder.
        progress: told of each run that is made.
    """

    plan: Plan
    out: Path
    progress: Progress = field(default_factory=lambda: Progress("leaderboard"))
    _starts: dict[int, Start] = field(default_factory=dict)

    def tune(self, methods: Sequence[str]) -> dict[str, float]:
        """The learning rate of each method, by its runs on the world for tuning.

        Raises:
            StudyError: a kept run has other settings or another stage-1 model, or holds no run.
            ValueError: the world in the folder is another one.
        """
        tried = {run: self.run(run).final for run in tuning_runs(self.plan, methods)}
        return {
            method: chosen_rate(of_method, self.plan.most_gibberish)
            if (of_method := {run.rate: final for run, final in tried.items() if run.method == method})
            else NO_RATE
            for method in methods
        }

    def compare(self, methods: Sequence[str], seeds: Sequence[int]) -> list[StudyRun]:
        """The runs that count: every method at its own learning rate, seed by seed. Raises as `tune`."""
        rates = self.tune(methods)
        return [self.run(Planned(method, rates[method], seed)) for seed in seeds for method in methods]

    def run(self, planned: Planned) -> StudyRun:
        """A run, from its file where it is kept. Raises as `tune`."""
        settings = self._settings(planned)
        path = run_file(self.out, self.plan.world, planned.arm, planned.seed)
        if path.is_file():
            return kept_with(path, known_then(settings, read_run(path).settings))
        made, _ = self.make(planned)
        self.progress.advance()
        return made

    def make(self, planned: Planned) -> tuple[StudyRun, Trained]:
        """A run, made anew and kept, and its model; the caller tells `progress` of it. Raises as `tune`."""
        start = self._start(planned.seed)
        check_model(start.data.fingerprint, planned.seed, self.out / self.plan.world)
        self._say(f"{planned.arm}, seed {planned.seed}")
        trained = METHODS[planned.method].train(start, self.plan, planned.rate)
        final = measure(trained.model, start, self._probes(start)) | spent(trained)
        names = (self.plan.world, planned.arm, planned.seed, commit())
        made = StudyRun(*names, self._settings(planned), final, trained.curves, start.data.fingerprint)
        write_run(made, self.out)
        return made, trained

    def _settings(self, planned: Planned) -> dict[str, Any]:
        settings = METHODS[planned.method].settings(self.plan, planned.rate, planned.seed)
        return {**settings, "probes_one_in": self._one_in(planned.seed)}

    def missing(self, methods: Sequence[str], seeds: Sequence[int]) -> int:
        """How many runs `compare` would make."""
        tuning = tuning_runs(self.plan, methods)
        untried = sum(not run_file(self.out, self.plan.world, run.arm, run.seed).is_file() for run in tuning)
        folder = run_file(self.out, self.plan.world, "any", 0).parent
        counted = [any(folder.glob(f"{method}[@-]*{seed}.json")) for method in methods for seed in seeds]
        return untried + counted.count(False)

    def _say(self, what: str) -> None:
        self.progress.doing(what)
        print(f"{self.plan.world}: {what} ...", flush=True)

    def _start(self, seed: int) -> Start:
        if seed not in self._starts:
            folder = self.out / self.plan.world / f"seed-{seed}"
            self._say(f"world and models of seed {seed}")
            self._starts[seed] = prepare(WORLDS[self.plan.world], seed, folder)
        return self._starts[seed]

    def _one_in(self, seed: int) -> int:
        return self.plan.tuning_probes if seed == self.plan.tuning_seed else 1

    def _probes(self, start: Start) -> list[Row]:
        probes, one_in = start.data.probes, self._one_in(start.seed)
        return probes if one_in == 1 else random.Random(0).sample(probes, -(-len(probes) // one_in))


def known_then(settings: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run without the keys of its method that a kept run does not have.

    They were added since, and a preset does not use them.
    """
    if "method" not in settings:
        return settings
    known = kept.get("method", {})
    return {**settings, "method": {key: value for key, value in settings["method"].items() if key in known}}


def tuning_runs(plan: Plan, methods: Sequence[str]) -> list[Planned]:
    """Every learning rate of each method that has one."""
    tuned = [method for method in methods if METHODS[method].tuned]
    return [Planned(method, rate, plan.tuning_seed) for method in tuned for rate in plan.grid]


def spent(trained: Trained) -> Metrics:
    """What a run cost, as measures; none of a model that was made elsewhere."""
    if trained.spent is None:
        return {}
    return {name: float(value) for name, value in vars(trained.spent).items()}
