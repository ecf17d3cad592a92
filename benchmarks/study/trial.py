"""One run of one arm: trains in process, and measures what the study asks for."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.study.ideas import IDEAS
from benchmarks.study.loop import Run, Settings, mean
from data_prep.contract import Row
from recipe.rerule.minimal import Metrics, batches, rewards_of
from recipe.rerule.replay import RolloutGroup, is_hard

EVALUATED_AT_ONCE = 512
SAMPLED = 4
"""One in so many probes is asked on the way, in every run the same ones; at the end all of them."""

PARTS = {"recall": "rouge", "refused": "refused", "reward": "score"}
"""Measures of a section, and the parts of the reward function's answers that they are means of."""


@dataclass(frozen=True)
class Data:
    """A world as a run needs it: prompts of stage 2, held-out probes, and the folder of the stage-1 model.

    fingerprint: of that model's weights.
    """

    train: list[Row]
    probes: list[Row]
    model: Path
    fingerprint: str

    @classmethod
    def read(cls, world: Path, model: Path) -> Data:
        """From the folders that `worlds.prepare` gives."""
        return cls(
            pq.read_table(world / "train.parquet").to_pylist(),
            pq.read_table(world / "probes.parquet").to_pylist(),
            model,
            fingerprint_of(model),
        )


def fingerprint_of(model: Path) -> str:
    """Of a model folder's weights: 12 hexadecimal digits of their SHA-256."""
    digest = hashlib.sha256()
    for path in sorted(model.glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass
class Measured:
    """What one run gave: `final` measures, and curves over the steps and over the validations."""

    final: Metrics = field(default_factory=dict)
    curves: dict[str, list[float]] = field(default_factory=dict)

    def note(self, values: Metrics) -> None:
        """Append to the curves."""
        for name, value in values.items():
            self.curves.setdefault(name, []).append(value)


def run_trial(data: Data, settings: Settings, validate_every: int, early_steps: int) -> Measured:
    """Train with these settings on this process's threads and measure on held-out probes.

    validate_every: steps between greedy validations on a sample of the probes. early_steps: a prompt whose
    group is hard in these first steps is an early-hard prompt, whose greedy reward is measured at each
    validation after them.
    """
    run = start(data, settings)
    measured, hard = Measured(), dict[int, Row]()
    source, step = batches(data.train, settings.prompts, settings.seed), 0
    sample = random.Random(0).sample(data.probes, -(-len(data.probes) // SAMPLED))
    while run.goes_on(step):
        step += 1
        rows = next(source)
        metrics, groups = run.step(rows, step)
        measured.note({"step": float(step), **metrics})
        if step <= early_steps:
            hard |= hard_prompts(rows, groups, settings.hard_below)
        if step % validate_every == 0:
            followed = list(hard.values()) if step >= early_steps else []
            measured.note({"validated_at": float(step), **validate(run, sample, followed)})
    measured.final = validate(run, data.probes, list(hard.values())) | summary(measured, step)
    return measured


def start(data: Data, settings: Settings, make: Callable[..., Run] | None = None, device: str = "cpu") -> Run:
    """A run before its first step, all generators seeded; `make`: in place of the idea's class."""
    tokenizer = AutoTokenizer.from_pretrained(data.model)
    model = AutoModelForCausalLM.from_pretrained(data.model, dtype=torch.float32).eval().to(device)
    torch.manual_seed(settings.seed)
    return (make or IDEAS[settings.idea])(
        model, copy.deepcopy(model).requires_grad_(False), tokenizer, settings
    )


def hard_prompts(rows: Sequence[Row], groups: Sequence[RolloutGroup], threshold: float) -> dict[int, Row]:
    """The rows whose group is hard, by prompt index."""
    pairs = zip(groups, rows, strict=True)
    return {group.prompt_index: row for group, row in pairs if is_hard(group.mean_reward, threshold)}


def validate(run: Run, probes: Sequence[Row], hard: Sequence[Row]) -> Metrics:
    """Recall, refusals and reward of greedy answers by section; reward of the hard prompts by side."""
    metrics = section_means(probes, greedy(run, probes))
    for side in ("forget", "retain"):
        own = [row for row in hard if row["reward_model"]["ground_truth"]["type"] == side]
        if own:
            metrics[f"early_hard/{side}"] = mean([answer["score"] for answer in greedy(run, own)])
            metrics[f"early_hard/{side}_prompts"] = float(len(own))
    return metrics


def section_means(probes: Sequence[Row], answers: Sequence[Row], parts: Mapping[str, str] = PARTS) -> Metrics:
    """Means of parts of the answers by their probe's section; `parts`: by the measures' names."""
    by_section: dict[str, list[Row]] = {}
    for row, answer in zip(probes, answers, strict=True):
        by_section.setdefault(row["extra_info"]["section"], []).append(answer)
    return {
        f"{section}/{name}": mean([answer[part] for answer in of_section])
        for section, of_section in sorted(by_section.items())
        for name, part in parts.items()
    }


def greedy(run: Run, rows: Sequence[Row]) -> list[Row]:
    """The reward function's answer for one greedy response to each prompt."""
    found: list[Row] = []
    for first in range(0, len(rows), EVALUATED_AT_ONCE):
        part = rows[first : first + EVALUATED_AT_ONCE]
        found += rewards_of(
            run.policy.texts(run.policy.respond(part, 1, greedy=True)), part, run.settings.reward
        )
    return found


def summary(measured: Measured, steps: int) -> Metrics:
    """Steps, compute, seconds; training metrics over all steps, the first and the last quarter."""
    curves, quarter = measured.curves, max(1, steps // 4)
    found: Metrics = {
        "steps": float(steps),
        "compute": max(curves.get("compute", [0.0])),
        "seconds": sum(curves.get("seconds", [])),
    }
    for name in ("reward/forget", "reward/retain", "hard_share", "signal_share"):
        if name in curves:
            values = curves[name]
            found |= {f"{name}/all": mean(values), f"{name}/first": mean(values[:quarter])}
            found[f"{name}/last"] = mean(values[-quarter:])
    for name in ("replay/effective_sample_size", "replay/signal_share"):
        if name in curves:
            found[name] = mean(curves[name])
    return found
