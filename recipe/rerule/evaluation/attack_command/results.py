"""The numbers of a command: a row for every attack and model, and the curves of relearning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipe.rerule.evaluation.attack_command.checked import CONTROL, ORIGINAL, Command
from recipe.rerule.evaluation.attack_command.kept import KeptReadings
from recipe.rerule.evaluation.attack_command.statistics import (
    Difference,
    Facts,
    Score,
    comparable,
    restricted,
    share,
    share_draws,
)
from recipe.rerule.evaluation.attacks.curves import area, half_recovery
from recipe.rerule.evaluation.attacks.interface import Attack, key_of
from recipe.rerule.evaluation.attacks.material import FORGET, REFUSAL, RETAIN, Reading, Readings, merged
from recipe.rerule.evaluation.attacks.registry import BEFORE
from recipe.rerule.evaluation.summary import holm

Row = dict[str, Any]
Results = dict[str, dict[str, Row]]
"""{attack: {model: row}}"""


@dataclass(frozen=True)
class Found:
    """What all pieces together found.

    Attributes:
        readings: by attack and model.
        seconds: likewise.
        scores: {attack/variant: {model: score}}.
    """

    facts: Facts
    readings: Mapping[tuple[str, str], Readings]
    seconds: Mapping[tuple[str, str], float]
    scores: Mapping[str, Mapping[str, Score]]


def found_of(command: Command, kept: KeptReadings) -> Found:
    """Folds and seeds of every attack and model together."""
    parts: dict[tuple[str, str], list[Readings]] = {}
    seconds: dict[tuple[str, str], float] = {}
    for piece in command.pieces:
        finished = kept.get(piece.key)
        assert finished is not None
        place = piece.planned.attack.name, piece.model.name
        parts.setdefault(place, []).append(finished.readings)
        seconds[place] = seconds.get(place, 0.0) + finished.seconds
    facts, readings = Facts(command.material), {place: merged(found) for place, found in parts.items()}
    scores = {
        key_of(planned.attack, variant): _scores(command, facts, readings, planned.attack, variant)
        for planned in command.plans
        for variant in readings[planned.attack.name, command.names[0]]
    }
    return Found(facts, readings, seconds, scores)


def _scores(
    command: Command,
    facts: Facts,
    readings: Mapping[tuple[str, str], Readings],
    attack: Attack,
    variant: str,
) -> dict[str, Score]:
    samples = facts.samples([readings[attack.name, name][variant] for name in command.names])
    return {name: Score(one, attack.statistic) for name, one in zip(command.names, samples, strict=True)}


def results_of(command: Command, found: Found) -> Results:
    """A row for every variant of every attack and every model, with p-values corrected for their number."""
    results = {
        key_of(planned.attack, variant): {
            name: _row(found, planned.attack, variant, name) for name in command.names
        }
        for planned in command.plans
        for variant in found.readings[planned.attack.name, command.names[0]]
    }
    _correct(results)
    return results


def _row(found: Found, attack: Attack, variant: str, name: str) -> Row:
    reading = found.readings[attack.name, name][variant]
    scores = found.scores[key_of(attack, variant)]
    return {
        **_gain(found, attack, reading, name),
        "after": scores[name].value,
        "after_interval": scores[name].interval,
        **_excess(scores, name),
        **_share(scores, name),
        "refusal": found.facts.mean(reading.get(REFUSAL)),
        "retain": found.facts.mean(reading.get(RETAIN)),
        "facts": len(found.facts.means(reading.get(FORGET, {}))),
        "seconds": round(found.seconds[attack.name, name], 1),
    }


def _gain(found: Found, attack: Attack, reading: Reading, name: str) -> Row:
    """The score before the attack, over the same probes, and what the attack gained."""
    before = found.readings[BEFORE, name][""]
    if not (attack.has_before and comparable(before, reading)):
        return {"before": None, "gain": None, "gain_interval": None}
    readings: list[Reading] = [{FORGET: reading[FORGET]}, restricted(before, reading)]
    later, earlier = (Score(one, attack.statistic) for one in found.facts.samples(readings))
    gained = Difference(later, earlier)
    return {"before": earlier.value, "gain": gained.value, "gain_interval": gained.interval}


def _excess(scores: Mapping[str, Score], name: str) -> Row:
    """E over the never-knew model, where there is one."""
    if CONTROL not in scores:
        return {"excess": None, "interval": None, "p_value": None, "p_holm": None}
    excess = Difference(scores[name], scores[CONTROL])
    return {
        "excess": excess.value,
        "interval": excess.interval,
        "p_value": excess.p_value(),
        "p_holm": None,
    }


def _share(scores: Mapping[str, Score], name: str) -> Row:
    """E by that of the original model."""
    pair = _excesses(scores, name)
    value, interval = (share(*pair) if pair else None) or (None, None)
    return {"share": value, "share_interval": interval}


def _excesses(scores: Mapping[str, Score], name: str) -> tuple[Difference, Difference] | None:
    """E of the model and that of the original one; None where a model is missing."""
    if ORIGINAL not in scores or CONTROL not in scores:
        return None
    return Difference(scores[name], scores[CONTROL]), Difference(scores[ORIGINAL], scores[CONTROL])


def _correct(results: Results) -> None:
    """Add `p_holm` to the rows of unlearned models: those that are neither the original nor the control."""
    tested = [
        row
        for rows in results.values()
        for name, row in rows.items()
        if name not in (ORIGINAL, CONTROL) and row["p_value"] is not None
    ]
    for row, corrected in zip(tested, holm([row["p_value"] for row in tested]), strict=True):
        row["p_holm"] = corrected


def curves_of(command: Command, found: Found, results: Results) -> list[Row]:
    """A record for every relearning attack and model: its scores by step, from step 0 on."""
    return [
        {"attack": planned.attack.name, "model": name, **_curve(found, planned.attack, name, results)}
        for planned in command.plans
        if planned.attack.curve
        for name in command.names
    ]


def _curve(found: Found, attack: Attack, name: str, results: Results) -> Row:
    steps = [0, *sorted(int(variant) for variant in found.readings[attack.name, name])]
    keys = [key_of(attack, str(step)) if step else BEFORE for step in steps]
    rows = [results[key][name] for key in keys]
    record: Row = {
        "steps": steps,
        "scores": [row["after"] for row in rows],
        "excess": [row["excess"] for row in rows],
        "shares": [row["share"] for row in rows],
        "area": None,
        **dict.fromkeys(("half_recovery", "half_recovery_median", "half_recovery_censored")),
    }
    if None not in record["excess"]:
        record["area"] = area(steps, record["excess"])
    if None not in record["shares"]:
        record["half_recovery"] = half_recovery(steps, record["shares"])
        record |= _resampled_half([found.scores[key] for key in keys], name, steps)
    return record


def _resampled_half(of_steps: list[Mapping[str, Score]], name: str, steps: list[int]) -> Row:
    """The median of half recovery over resamples of the facts, and the share in which no step reaches it."""
    shares = [share_draws(*pair) for pair in (_excesses(scores, name) for scores in of_steps) if pair]
    halves = [half_recovery(steps, one) for one in np.nan_to_num(np.array(shares)).T.tolist()]
    middle = sorted(math.inf if half is None else half for half in halves)[len(halves) // 2]
    return {
        "half_recovery_median": None if math.isinf(middle) else middle,
        "half_recovery_censored": sum(half is None for half in halves) / len(halves),
    }
