"""The plan's runs: each kept in a file as it ends, and not made twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.study.arms import settings_of
from benchmarks.study.loop import Settings
from benchmarks.study.measures import overall
from benchmarks.study.planned.plan import OURS, PLAN, PLANNED, SHARE, plan_hash
from benchmarks.study.planned.trial import Budget, run_planned
from benchmarks.study.policy import LOOP
from benchmarks.study.runs import StudyError, commit
from benchmarks.study.trial import Data, Measured
from benchmarks.study.worlds import WORLDS, StudyWorld, prepare
from data_prep.contract import Row

_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Wanted:
    """A run of a base.

    Attributes:
        arm, rate, seed: which one; `rate` times the world's learning rate.
        of_rate: rate of the run that its budget is taken from; 0 where it is the world's steps.
    """

    arm: str
    rate: float
    seed: int
    of_rate: float = 0.0

    @property
    def reference(self) -> Wanted | None:
        """The run of the same start that its budget is taken from."""
        until = PLANNED[self.arm].until
        arm = {"compute": OURS, "generated": "rule"}.get(until)
        return None if arm is None else Wanted(arm, self.of_rate, self.seed)


@dataclass(frozen=True)
class PlannedRun:
    """A run that was made.

    Attributes:
        world, base: of the stage-1 model: `base` is the seed of people, facts, base model and stage 1.
        arm, rate, seed: as in `Wanted`.
        plan: hash of the plan that it was made under.
        commit: of the code, with "+" where it was changed since.
        content: fingerprint of the world's rows.
        model: fingerprint of the stage-1 model.
        settings: of `loop.Settings`, "budget", and the "loop" where it is not the first one.
        final: measures at the end, by name.
        curves: by name, see `trial.run_planned`.
    """

    world: str
    base: int
    arm: str
    rate: float
    seed: int
    plan: str
    commit: str
    content: str
    model: str
    settings: dict[str, Any]
    final: dict[str, float]
    curves: dict[str, list[float]] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """Mean score at the end, on all probes."""
        found = overall(self.final)
        assert found is not None
        return found

    @property
    def scores(self) -> list[float]:
        """Mean score at each validation."""
        parts = (self.curves[f"{name}/recall"] for name in ("forget", "retain", "retain_unseen"))
        return [(1 - forget + kept + unseen) / 3 for forget, kept, unseen in zip(*parts, strict=True)]


@dataclass
class Study:
    """A folder of runs; worlds and models are made only where a run of theirs is missing.

    tofu: folder of TOFU's files. worlds: by name. plan: its file.
    """

    out: Path
    tofu: Path | None = None
    worlds: Mapping[str, StudyWorld] = field(default_factory=lambda: WORLDS)
    plan: Path = PLAN

    def runs_of(self, world: str, base: int, wanted: Sequence[Wanted]) -> dict[Wanted, PlannedRun]:
        """These runs of a base, all from one stage-1 model; those that are missing are made.

        Where kept runs are from another model than this machine trains, and some are missing, all are made
        anew from this machine's model: runs from different models are never compared.

        Raises:
            StudyError: a kept run was made under another plan, or is damaged.
            ValueError: the world cannot be made.
        """
        kept = self._kept(world, base)
        for runs in kept.values():
            if all(each in runs for each in wanted):
                return {each: runs[each] for each in wanted}
        data = self._data(world, base)
        runs = kept.get(data.fingerprint, {})
        for each in sorted(wanted, key=lambda one: one.reference is not None):
            if each not in runs:
                runs[each] = self._make(world, base, each, data, runs)
        return {each: runs[each] for each in wanted}

    def every(self) -> list[PlannedRun]:
        """All kept runs. Raises StudyError as `runs_of`."""
        return list(kept_runs(self.out, self.plan))

    def _make(
        self, world: str, base: int, each: Wanted, data: Data, runs: Mapping[Wanted, PlannedRun]
    ) -> PlannedRun:
        settings = planned_settings(self.worlds[world], each)
        budget = budget_of(each, settings.steps, runs)
        print(f"{world}-{base}: {each.arm} at {each.rate:g} x, seed {each.seed} ...", flush=True)
        measured = self._trained(data, settings, budget)
        run = PlannedRun(
            world=world,
            base=base,
            arm=each.arm,
            rate=each.rate,
            seed=each.seed,
            plan=plan_hash(self.plan),
            commit=commit(),
            content=content_of(data.train, data.probes),
            model=data.fingerprint,
            settings={
                **asdict(settings),
                **self._origin(world, base),
                "budget": {**asdict(budget), "of_rate": each.of_rate},
                "loop": LOOP,
            },
            final=measured.final,
            curves=measured.curves,
        )
        write_run(run, self.out)
        print(f"    score {run.score:.3f}, {run.final['cpu_seconds']:.0f} s", flush=True)
        return run

    def _trained(self, data: Data, settings: Settings, budget: Budget) -> Measured:
        return run_planned(data, settings, budget)

    def _origin(self, world: str, base: int) -> dict[str, Any]:
        """What a run keeps of where it was made, with its settings."""
        return {}

    def _data(self, world: str, base: int) -> Data:
        made = with_base(self.worlds[world], base)
        return Data.read(*prepare(made, self.out / "worlds" / f"{world}-{base}", self.tofu))

    def _kept(self, world: str, base: int) -> dict[str, dict[Wanted, PlannedRun]]:
        """By stage-1 model."""
        found: dict[str, dict[Wanted, PlannedRun]] = {}
        for run in kept_runs(self.out, self.plan):
            if (run.world, run.base) == (world, base):
                found.setdefault(run.model, {})[wanted_of(run)] = run
        return found


def with_base(world: StudyWorld, base: int) -> StudyWorld:
    """The world with people, facts, base model and refusals of that seed."""
    tofu = None if world.tofu is None else replace(world.tofu, seed=base)
    return replace(world, config=replace(world.config, seed=base), tofu=tofu)


def planned_settings(world: StudyWorld, each: Wanted) -> Settings:
    """A run's settings."""
    settings = settings_of(PLANNED[each.arm].arm, world, each.seed)
    return replace(settings, learning_rate=settings.learning_rate * each.rate)


def budget_of(each: Wanted, steps: int, runs: Mapping[Wanted, PlannedRun]) -> Budget:
    """When a run ends.

    Raises:
        StudyError: the run that its budget is taken from is not there.
    """
    until, reference = PLANNED[each.arm].until, each.reference
    if reference is None:
        return Budget("steps", steps)
    if reference not in runs:
        raise StudyError(f"{each.arm} needs a run of {reference.arm} at rate {reference.rate:g} first")
    amount = runs[reference].final[until]
    return Budget(until, SHARE * amount if until == "generated" else amount)


def wanted_of(run: PlannedRun) -> Wanted:
    """What a run is."""
    return Wanted(run.arm, run.rate, run.seed, run.settings["budget"]["of_rate"])


def content_of(*parts: Sequence[Row]) -> str:
    """Fingerprint of rows: 12 hexadecimal digits of the SHA-256 of their JSON."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def run_file(run: PlannedRun, out: Path) -> Path:
    """Where a run is kept."""
    name = f"{run.arm}@{run.rate:g}-{run.seed}.json"
    return out / "runs" / f"{run.world}-{run.base}-{run.model}" / name


def write_run(run: PlannedRun, out: Path) -> None:
    """Keep a run; the file is whole or absent."""
    path = run_file(run, out)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(run)))
    part.replace(path)


def kept_runs(out: Path, plan: Path = PLAN) -> Iterator[PlannedRun]:
    """The runs kept in a folder, in the order of their files; `plan`: the file that they were made under.

    Raises:
        StudyError: a file holds no run, or one made under another plan.
    """
    for path in sorted((out / "runs").glob("*/*.json")):
        try:
            run = PlannedRun(**json.loads(path.read_text()))
        except (json.JSONDecodeError, TypeError) as error:
            raise StudyError(f"{path} is no run of the plan: {error!r}; move it away") from error
        if run.plan != plan_hash(plan):
            raise StudyError(
                f"{path} was made under plan {run.plan}, and {plan.relative_to(_ROOT)} is {plan_hash(plan)}; "
                "choose another --out, or take the commit of that plan"
            )
        yield run
