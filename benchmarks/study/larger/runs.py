"""The plan's runs on the larger world: each kept in a file as it ends, and not made twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.study.larger.answers import chosen_rate
from benchmarks.study.larger.machine import Machine
from benchmarks.study.larger.plan import (
    ARMS,
    COUNTED_BASES,
    LEAST_RECALL,
    LEAST_REFUSED,
    PLAN,
    RATES,
    SEED,
    SIZES,
    SPLIT,
    STEERING_RATES,
    TUNED,
    TUNING_BASE,
    Split,
)
from benchmarks.study.larger.progress import Progress
from benchmarks.study.larger.world import Place, base_of, make_base, measured, stage1_of
from benchmarks.study.loop import Settings
from benchmarks.study.planned.runs import PlannedRun, Study, Wanted
from benchmarks.study.planned.trial import Budget, follow
from benchmarks.study.runs import StudyError
from benchmarks.study.trial import Data, Measured, start
from benchmarks.study.worlds import StudyWorld
from data_prep.world.stage1 import Steering


@dataclass
class LargerStudy(Study):
    """A folder of runs of this plan; the worlds are its sizes.

    Attributes:
        machine: that trains. Runs of one stage-1 model are all made on one kind of machine.
        split: which authors are where.
        least_recall: of a base model on the forget probes; below it, no run is made.
        least_refused: share of the forget probes that stage 1 has to make the model for tuning refuse.
        steering: stage 1 by size, once it is known.
        left: runs that a command still has to make, for the time left.
    """

    worlds: Mapping[str, StudyWorld] = field(default_factory=lambda: SIZES)
    plan: Path = PLAN
    machine: Machine = field(default_factory=Machine)
    split: Split = SPLIT
    least_recall: float = LEAST_RECALL
    least_refused: float = LEAST_REFUSED
    steering: dict[str, Steering] = field(default_factory=dict)
    left: int = 0

    def place(self, size: str, base: int) -> Place:
        """Where the world of a base is."""
        return Place(self.out / "worlds" / f"{size}-{base}", self.tofu, self.machine)

    def tune(self, size: str) -> None:
        """The runs that choose the rate."""
        self.runs_of(size, TUNING_BASE, [Wanted(TUNED, rate, SEED) for rate in RATES])

    def count(self, size: str, bases: Sequence[int] = COUNTED_BASES) -> None:
        """Every arm on these models, at the chosen rate."""
        rate = chosen_rate(self.every(), size)
        if rate is None:
            raise StudyError(f"the rate of {size} is not chosen yet; run without --bases first")
        for base in bases:
            self.runs_of(size, base, [Wanted(arm, rate, SEED) for arm in ARMS])

    def missing(self, size: str, bases: Sequence[int] = COUNTED_BASES) -> int:
        """How many runs of these models, and of those that choose the rate, are not kept."""
        wanted = {TUNING_BASE: len(RATES), **dict.fromkeys(bases, len(ARMS))}
        most = {
            base: max((len(runs) for runs in self._kept(size, base).values()), default=0) for base in wanted
        }
        return sum(max(0, count - most[base]) for base, count in wanted.items())

    def _make(
        self, world: str, base: int, each: Wanted, data: Data, runs: Mapping[Wanted, PlannedRun]
    ) -> PlannedRun:
        for run in runs.values():
            made_on = Machine(**run.settings["machine"])
            if made_on != self.machine:
                raise StudyError(
                    f"the runs of base {base} were made on {made_on.device} in {made_on.dtype}; go on with "
                    f"--device {made_on.device} --dtype {made_on.dtype}, or choose another --out"
                )
        return super()._make(world, base, each, data, runs)

    def _trained(self, data: Data, settings: Settings, budget: Budget) -> Measured:
        self.left -= 1
        run = start(data, settings, self.machine.run, self.machine.device)
        found = follow(run, data, budget, Progress(max(0, self.left)))
        before = measured(data, settings, self.machine)
        found.final |= {f"start/{name}": value for name, value in before.items()}
        return found

    def base(self, size: str, base: int) -> Place:
        """The rows and the base model of a base, made unless they are there.

        Raises:
            StudyError: the model does not know enough to be counted as trained.
            ValueError: as `make_base`.
        """
        place = self.place(size, base)
        make_base(self.worlds[size], base, place, self.split)
        recall = base_of(place)["forget/recall"]
        if recall < self.least_recall:
            raise StudyError(
                f"base {base} has a recall of {recall:.3f} on the forget probes; the plan stops below "
                f"{self.least_recall}"
            )
        return place

    def steering_of(self, size: str) -> Steering:
        """Stage 1 of a size: that of its kept runs, else chosen on the model for tuning.

        Raises:
            StudyError: no learning rate makes that model refuse enough.
        """
        if size not in self.steering:
            kept = (Steering(**run.settings["steering"]) for run in self.every() if run.world == size)
            self.steering[size] = next(kept, None) or self._chosen_steering(size)
        return self.steering[size]

    def _chosen_steering(self, size: str) -> Steering:
        world, place = self.worlds[size], self.base(size, TUNING_BASE)
        for rate in STEERING_RATES:
            how = replace(world.steering, learning_rate=rate)
            found = measured(stage1_of(place, how, TUNING_BASE), Settings(**world.settings), self.machine)
            print(f"{size}: stage 1 at {rate:g} refuses {found['forget/refused']:.3f}", flush=True)
            if found["forget/refused"] >= self.least_refused:
                return how
        raise StudyError(
            f"no learning rate of stage 1 makes base {TUNING_BASE} refuse {self.least_refused} of the forget "
            "probes; the plan stops here"
        )

    def _origin(self, world: str, base: int) -> dict[str, Any]:
        return {
            "base_model": base_of(self.place(world, base)),
            "steering": asdict(self.steering_of(world)),
            "machine": asdict(self.machine),
        }

    def _data(self, world: str, base: int) -> Data:
        how = self.steering_of(world)
        return stage1_of(self.base(world, base), how, base)
