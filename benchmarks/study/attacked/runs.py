"""The models and attacks of one base: what is there is used again, what is missing is made."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.study.attacked.plan import ARMS, ATTACKS, SEED, WORLD
from benchmarks.study.measures import overall
from benchmarks.study.planned.choice import chosen_rate, counted
from benchmarks.study.planned.plan import RUNS
from benchmarks.study.planned.runs import PlannedRun, planned_settings, wanted_of, with_base
from benchmarks.study.planned.trial import Budget, follow
from benchmarks.study.runs import StudyError
from benchmarks.study.trial import Data, start
from benchmarks.study.worlds import WORLDS, StudyWorld, prepare
from benchmarks.survival.runs import attack_command
from data_prep.atomic import new_folder
from recipe.rerule.evaluation.attack_command.output import RESULTS
from recipe.rerule.process.progress import Progress
from recipe.rerule.reporting.attacks.results import CONTROL, ORIGINAL

TOLERANCE = 1e-6
"""Of a mean score that is measured again on the same machine."""


def attacked_runs(runs: Sequence[PlannedRun], base: int) -> dict[str, PlannedRun]:
    """The kept run of each arm whose model is attacked.

    Raises:
        StudyError: a run is missing.
    """
    found = {}
    for arm in ARMS:
        place = (WORLD, base, arm, chosen_rate(runs, WORLD, arm), SEED)
        own = [r for r in counted(runs) if (r.world, r.base, r.arm, r.rate, r.seed) == place]
        if not own:
            raise StudyError(
                f"base {base} has no run of {arm} at its chosen rate; make the plan's runs first"
            )
        found[arm] = own[0]
    return found


@dataclass
class Attacks:
    """Attacks on the final models of bases, kept below a folder.

    Attributes:
        runs: of the planned study.
        platform: of `evaluate attack`.
        world: in which the runs were made.
        attacks: of `evaluate attack`.
        progress: told of each model and of each base's attacks that is made.
    """

    runs: Sequence[PlannedRun]
    out: Path
    platform: str = "cpu"
    world: StudyWorld = field(default_factory=lambda: WORLDS[WORLD])
    attacks: Sequence[str] = ATTACKS
    progress: Progress = field(default_factory=lambda: Progress("attacks"))

    def folder(self, base: int) -> Path:
        """Where a base's world, models and attacks are."""
        return self.out / f"{WORLD}-{base}"

    def results(self, base: int) -> Path:
        """The folder of a base's attacks."""
        return self.folder(base) / "attacks"

    def is_done(self, base: int) -> bool:
        """Whether the attacks on a base are finished."""
        return (self.results(base) / RESULTS).is_file()

    def attack(self, base: int) -> Path:
        """The folder of the base's attacks, made unless it is there.

        Raises:
            StudyError: a run is missing or cannot be made again here, or the attacks failed.
            ValueError: the world that is there is another one.
        """
        if self.is_done(base):
            return self.results(base)
        kept = attacked_runs(self.runs, base)
        self.progress.doing(f"the world of base {base}")
        folders = prepare(with_base(self.world, base), self.folder(base), retain_model=True)
        models = self._models(folders[0], Data.read(*folders), kept)
        self.progress.doing(f"attacks on base {base}")
        command = attack_command(folders[0], models, self.platform, self.results(base), self.attacks)
        if code := subprocess.run(command, check=False).returncode:
            raise StudyError(f"evaluate attack ended with exit code {code} on base {base}")
        self.progress.advance()
        return self.results(base)

    def _models(self, world: Path, data: Data, kept: Mapping[str, PlannedRun]) -> dict[str, Path]:
        made = {arm: self._model(data, run) for arm, run in kept.items()}
        return {ORIGINAL: world / "model", **made, CONTROL: world / "retain_model"}

    def _model(self, data: Data, run: PlannedRun) -> Path:
        """The final model of a kept run, trained anew."""
        target = self.folder(run.base) / "models" / run.arm
        if not target.exists():
            self.progress.doing(f"{run.arm} of base {run.base}")
            self._write_model(data, run, target)
        return target

    def _write_model(self, data: Data, run: PlannedRun, target: Path) -> None:
        if data.fingerprint != run.model:
            raise StudyError(
                f"the stage-1 model of base {run.base} is {data.fingerprint} here, and {run.model} in "
                "the kept runs; attack it on a machine that trains the same one"
            )
        settings = planned_settings(self.world, wanted_of(run))
        loop = start(data, settings, RUNS[settings.idea])
        budget = run.settings["budget"]
        score = overall(follow(loop, data, Budget(budget["unit"], budget["amount"])).final)
        if score is None or abs(score - run.score) > TOLERANCE:
            raise StudyError(
                f"{run.arm} of base {run.base} has a mean score of {score} here, and {run.score} in the kept "
                "run; attack it on the machine and with the commit of that run"
            )
        with new_folder(target, overwrite=False) as draft:
            loop.policy.model.save_pretrained(draft)
            loop.policy.tokenizer.save_pretrained(draft)
