"""One run of the plan: trains until its budget is spent, and measures on held-out probes as it goes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from benchmarks.study.loop import Cost, Run, Settings
from benchmarks.study.planned.plan import RUNS, VALIDATIONS, Unit
from benchmarks.study.planned.saving import SavingRun
from benchmarks.study.planned.tries import Resampled
from benchmarks.study.trial import SAMPLED, Data, Measured, start, validate
from data_prep.contract import Row
from recipe.rerule.minimal import Metrics

AT = ("steps", "compute", "generated", "cpu_seconds")
"""What a validation is placed by; curves are named at/NAME."""
KEPT_CURVES = ("reward/forget", "reward/retain", "signal_share", "replay/token_share", "replay/staleness")


@dataclass(frozen=True)
class Budget:
    """A run goes on until it has spent `amount` of `unit`."""

    unit: Unit
    amount: float

    def spent(self, cost: Cost, steps: int) -> float:
        """The share of the budget that is spent; 1 and more ends the run."""
        used = {"steps": steps, "compute": cost.tokens, "generated": cost.generated}
        return used[self.unit] / self.amount


class Stream:
    """Rows in endless epochs, each in a random order of its own; as `minimal.batches`, in any portions."""

    def __init__(self, rows: Sequence[Row], seed: int) -> None:
        self._rows = rows
        self._generator = torch.Generator().manual_seed(seed)
        self._left: list[int] = []

    def take(self, count: int) -> list[Row]:
        """The next rows."""
        while len(self._left) < count:
            self._left += torch.randperm(len(self._rows), generator=self._generator).tolist()
        taken, self._left = self._left[:count], self._left[count:]
        return [self._rows[place] for place in taken]


def run_planned(data: Data, settings: Settings, budget: Budget) -> Measured:
    """Train with these settings until the budget is spent.

    Curves have a value a step (KEPT_CURVES, where a step has one), and for each validation its place (at/...)
    and the measures of its sections.
    """
    return follow(start(data, settings, RUNS[settings.idea]), data, budget)


def follow(run: Run, data: Data, budget: Budget, tell: Callable[[float], None] = lambda _: None) -> Measured:
    """Take a run from its first step to the end of its budget; measured as `run_planned` says.

    tell: hears after each step the share of the budget that is spent.
    """
    stream = Stream(data.train, run.settings.seed)
    if isinstance(run, Resampled):
        run.more = stream.take
    sample = random.Random(0).sample(data.probes, -(-len(data.probes) // SAMPLED))
    measured, steps, seconds, validated = Measured(), 0, 0.0, 0
    while budget.spent(run.cost, steps) < 1:
        steps += 1
        began = time.process_time()
        metrics, _ = run.step(stream.take(wanted(run)), steps)
        seconds += time.process_time() - began
        measured.note({name: metrics[name] for name in KEPT_CURVES if name in metrics})
        due = min(VALIDATIONS, int(VALIDATIONS * budget.spent(run.cost, steps)))
        if due > validated:
            validated = due
            measured.note(place(run.cost, steps, seconds) | validate(run, sample, []))
        tell(budget.spent(run.cost, steps))
    measured.final = validate(run, data.probes, []) | spent(run.cost, steps, seconds)
    return measured


def wanted(run: Run) -> int:
    """New prompts for the next step."""
    return run.wanted if isinstance(run, SavingRun) else run.settings.prompts


def spent(cost: Cost, steps: int, seconds: float) -> Metrics:
    """What a run has cost; seconds are of this process on the processor, without validations."""
    values = (float(steps), cost.tokens, float(cost.generated), seconds)
    return dict(zip(AT, values, strict=True))


def place(cost: Cost, steps: int, seconds: float) -> Metrics:
    """Where a validation stands."""
    return {f"at/{name}": value for name, value in spent(cost, steps, seconds).items()}
