"""What attacks work with and what they find: probes as their benchmark asks and scores them, and readings.

A score is a number for a probe or for another unit of evidence, usually in [0, 1]. The probes of a fact are
averaged before anything else is computed, so that intervals and tests have facts as their units.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recipe.rerule.evaluation.engine.requests import Generation
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.training.template_arguments import Template

FORGET, RETAIN, REFUSAL = "forget", "retain", "refusal"
"""Sets of a reading: scores of the facts to forget, recall of retained ones, and which forget probes were
refused (1) or answered (0)."""
SCORE = "score"
"""The one quantity of every set, as statistics name it."""
Unit = int | str
"""The index of a probe, which counts with its fact; or a text for a unit of evidence of its own."""
Values = Mapping[Unit, float]
Reading = Mapping[str, Values]
"""{set: values}: what one variant of an attack found about one model."""
Readings = Mapping[str, Reading]
"""{variant: reading}. "" is the only variant of an attack that has no others."""


@dataclass(frozen=True)
class Asked:
    """A probe and how its benchmark asks it: one generation."""

    probe: Probe
    request: Generation


@dataclass(frozen=True)
class Scored:
    """What a benchmark says of a response to a probe.

    Attributes:
        recall: its main quantity, from 0 to 1 (`Recovery`).
        refused: whether the response is a refusal.
    """

    recall: float
    refused: bool


@dataclass(frozen=True)
class Material:
    """What an attack works with: the same for every model of a command.

    Attributes:
        asked: the forget probes that count (`Benchmark.recovery`).
        retained: probes of the retain side, which show whether the model still works.
        train: rows of --train, as probes; () where it is not given.
        fact: what a probe or a row asks for.
        score: what the benchmark says of (probe, response) pairs. A probe may come with other golds than its
            own, and several times.
        tokenizer: that of all models; its chat template gets `template` by itself.
        context: most tokens that every model takes, None where the models do not say.
        seeds: how often an attack that draws at random is repeated.
        texts: whole texts by set, for membership inference: members and others.
        template: arguments of the chat template.
    """

    asked: tuple[Asked, ...]
    retained: tuple[Asked, ...]
    train: tuple[Probe, ...]
    fact: Callable[[Probe], Hashable]
    score: Callable[[Sequence[tuple[Probe, str]]], list[Scored]]
    tokenizer: Any
    context: int | None = None
    seeds: int = 1
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    template: Template = ()

    @property
    def probes(self) -> list[Probe]:
        """The forget probes that count."""
        return [asked.probe for asked in self.asked]


def merged(readings: Iterable[Readings]) -> dict[str, dict[str, dict[Unit, float]]]:
    """Folds and seeds together: each unit has the mean of its values, of each variant and set."""
    found: dict[str, dict[str, dict[Unit, list[float]]]] = {}
    for one in readings:
        for variant, reading in one.items():
            for name, values in reading.items():
                units = found.setdefault(variant, {}).setdefault(name, {})
                for unit, value in values.items():
                    units.setdefault(unit, []).append(value)
    return {
        variant: {
            name: {unit: float(np.mean(values)) for unit, values in units.items()}
            for name, units in sets.items()
        }
        for variant, sets in found.items()
    }
