"""What the plan costs on this machine: seconds of each kind of step, and hours of all of them together.

Seconds are of the processor on a CPU, where other programs do not count, and of the clock on a GPU.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import count, cycle
from math import ceil
from pathlib import Path

from benchmarks.study.arms import settings_of
from benchmarks.study.larger.base import Training
from benchmarks.study.larger.machine import Machine
from benchmarks.study.larger.plan import ARMS, COUNTED_BASES, RATES, SPLIT, TUNED, Split
from benchmarks.study.larger.rows import PROBED, TRAINED, base_pairs, read_questions
from benchmarks.study.larger.world import rows_of
from benchmarks.study.loop import Run, Settings
from benchmarks.study.planned.trial import VALIDATIONS
from benchmarks.study.tofu import refusal_rows
from benchmarks.study.trial import SAMPLED, greedy
from benchmarks.study.worlds import StudyWorld
from data_prep.world.model import make_batches, make_model
from data_prep.world.tokenizer import train_tokenizer
from recipe.rerule.minimal import batches

ASKED = 64
"""Probes whose greedy answers are timed."""


@dataclass(frozen=True)
class Seconds:
    """What things take.

    Attributes:
        base_step, stage1_step: an optimiser step of base training, and of stage 1.
        rule_step: a training step of RULE.
        extra_update: a second update of a step: replay's, or the one of equal updates.
        probe: one greedy answer.
    """

    base_step: float
    stage1_step: float
    rule_step: float
    extra_update: float
    probe: float


@dataclass(frozen=True)
class Counts:
    """How many of them there are; `with_extra`: steps of a run that have a second update."""

    base_steps: int
    stage1_steps: int
    steps: int
    with_extra: int
    probes: int

    def model(self, of: Seconds) -> float:
        """Seconds of one base and its stage 1; the base answers all probes."""
        return of.base_step * self.base_steps + of.stage1_step * self.stage1_steps + of.probe * self.probes

    def run(self, of: Seconds, arm: str) -> float:
        """Seconds of a run; it answers all probes before and after, and some at each validation."""
        extra = 0.0 if arm == "rule" else of.extra_update * self.with_extra
        return of.rule_step * self.steps + extra + of.probe * self.probes * (2 + VALIDATIONS / SAMPLED)

    def plan(self, of: Seconds) -> float:
        """Seconds of all that the plan makes of one size."""
        counted = sum(self.run(of, arm) for arm in ARMS) * len(COUNTED_BASES)
        return self.model(of) * (1 + len(COUNTED_BASES)) + self.run(of, TUNED) * len(RATES) + counted


class Bench:
    """A world's rows with untrained weights, to time steps on.

    Untrained weights answer at full length, which trained ones do not: a step of RULE takes at most as long.
    """

    def __init__(self, world: StudyWorld, source: Path, machine: Machine, split: Split = SPLIT) -> None:
        self.world, self.machine = world, machine
        questions, rng = read_questions(source, split), random.Random(0)
        pairs = base_pairs(questions, split, rng)
        self.train = rows_of(questions, "question", TRAINED)
        self.probes = rows_of(questions, "paraphrased_question", PROBED)
        self.refusals = len(refusal_rows(questions, rng))
        tokenizer = train_tokenizer((text for pair in pairs for text in pair), world.config.vocab_size)
        self.training = Training(world.config, tokenizer, pairs, machine)
        self.tokenizer = tokenizer

    def counts(self) -> Counts:
        """How many steps of each kind the plan has."""
        how = self.world.steering
        steps, warmup = self.world.settings["steps"], self.world.replay["warmup_steps"]
        return Counts(
            base_steps=self.training.all_steps,
            stage1_steps=how.epochs * ceil(self.refusals / how.batch_size),
            steps=steps,
            with_extra=max(0, steps - warmup),
            probes=len(self.probes),
        )

    def seconds(self, steps: int) -> Seconds:
        """Means over so many steps, after one that is not counted."""
        rule = self.run_step("rule", steps)
        return Seconds(
            base_step=self.training_step(self.world.config.batch_size, steps),
            stage1_step=self.training_step(self.world.steering.batch_size, steps),
            rule_step=rule,
            extra_update=self.run_step("equal_updates", steps) - rule,
            probe=self.probe(),
        )

    def training_step(self, batch_size: int, steps: int) -> float:
        """An optimiser step of base training with batches of that size; stage 1's takes no longer."""
        source = cycle(make_batches(self.training.examples, batch_size, 0))
        return self.mean_seconds(lambda: self.training.step(next(source)), steps)

    def run_step(self, arm: str, steps: int) -> float:
        """A training step of an arm, with its second update from the first step on."""
        settings = settings_of(ARMS[arm].arm, self.world, 0)
        always = replace(settings.replay, warmup_steps=0, min_groups=1, threshold=1.0)
        run = self._run(replace(settings, replay=always))
        source = batches(self.train, settings.prompts, 0)
        places = count(1)
        return self.mean_seconds(lambda: run.step(next(source), next(places)), steps)

    def probe(self) -> float:
        """One greedy answer, of many at once."""
        run = self._run(settings_of(ARMS["rule"].arm, self.world, 0))
        asked = self.probes[:ASKED]
        return self.mean_seconds(lambda: greedy(run, asked), 1) / len(asked)

    def _run(self, settings: Settings) -> Run:
        policy, reference = (make_model(self.world.config, self.tokenizer).eval() for _ in range(2))
        place = self.machine.device
        return self.machine.run(policy.to(place), reference.to(place), self.tokenizer, settings)

    def mean_seconds(self, step: Callable[[], object], steps: int) -> float:
        """Of a call, the first one left out."""
        clock = time.process_time if self.machine.device == "cpu" else time.perf_counter
        step()
        began = clock()
        for _ in range(steps):
            step()
        return (clock() - began) / steps


def report(counts: Counts, seconds: Seconds) -> str:
    """All of it in lines."""
    hours = [counts.model(seconds), *(counts.run(seconds, arm) for arm in ARMS), counts.plan(seconds)]
    names = ["one base with its stage 1", *(f"one run of {arm}" for arm in ARMS), "the whole plan"]
    lines = [f"{name.replace('_', ' ')}: {value:.3g} s" for name, value in asdict(seconds).items()]
    lines += [f"{name.replace('_', ' ')}: {value}" for name, value in asdict(counts).items()]
    return "\n".join(
        [*lines, *(f"{name}: {value / 3600:.2f} h" for name, value in zip(names, hours, strict=True))]
    )
