"""Metrics of TOFU logs, under open-unlearning's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.benchmarks.tofu import metrics as definitions
from recipe.rerule.evaluation.benchmarks.tofu.log import LogReader, as_open_unlearning
from recipe.rerule.evaluation.logs.metrics import (
    MEANS_OF_SCORES,
    Scored,
    compute,
    extra_computations,
    mean_score,
    own_aggregates,
)
from recipe.rerule.evaluation.logs.open_unlearning import Log, LogError, MissingError, read_log
from recipe.rerule.evaluation.logs.questions import difference, logged_golds
from recipe.rerule.evaluation.statistics.samples import Array


def score(
    log: Log,
    retain_log: Log | None = None,
    *,
    wanted: Sequence[str] | None = None,
    variants: bool = False,
    allow_unequal: bool = False,
) -> Scored:
    """Metrics of `log` under open-unlearning's names.

    Args:
        retain_log: of a model trained without the forget set; forget_quality and privleak compare with it.
        wanted: metrics that must come out; None for all that can be computed.
        variants: other readings as well (`metrics.VARIANTS`).
        allow_unequal: compare truth ratios over different questions too.

    Raises:
        LogError: see `compute`; part of what model utility needs is missing; a retained model's log that does
            not hold the same questions.
    """
    reader = LogReader(as_open_unlearning(log))
    retain = None if retain_log is None else LogReader(as_open_unlearning(retain_log))
    computations = _computations(reader, retain, allow_unequal)
    if variants:
        computations |= _variants(reader, retain, allow_unequal)
    scored = compute(computations, extra_computations(log, retain_log, reader.notes), wanted)
    notes = [*reader.notes, *(retain.notes if retain else []), *scored.notes]
    # What a log itself says against a retained model can be checked only where that model's log is given.
    not_held = () if retain_log else ("forget_quality", "privleak")
    held = {name: value for name, value in scored.metrics.items() if name not in not_held}
    return Scored(
        scored.metrics, list(dict.fromkeys([*notes, *own_aggregates(log, held)])), definitions.LEGEND
    )


Computations = dict[str, Callable[[], float]]
"""How each metric is computed, by name."""


def _computations(reader: LogReader, retain: LogReader | None, allow_unequal: bool) -> Computations:
    """The metrics that open-unlearning has."""
    return {
        "model_utility": partial(_model_utility, reader),
        "forget_quality": partial(_official_forget_quality, reader, retain, allow_unequal),
        **{name: partial(_part, reader, part) for name, part in definitions.PARTS.items()},
    }


def _variants(reader: LogReader, retain: LogReader | None, allow_unequal: bool) -> Computations:
    """Other readings of the same metrics."""
    arithmetic = partial(_forget_quality, reader, retain, "arithmetic_truth_ratio", allow_unequal)
    parts = {name: partial(_part, reader, variant) for name, variant in definitions.VARIANTS.items()}
    return {**parts, "forget_quality_arithmetic": arithmetic}


def _part(reader: LogReader, part: Callable[[Any], Array]) -> float:
    return float(part(reader.samples))


def _model_utility(reader: LogReader) -> float:
    missing = []
    for name, part in definitions.UTILITY_PARTS.items():
        try:
            part(reader.samples)
        except MissingError:
            missing.append(name)
    if len(missing) == len(definitions.UTILITY_PARTS):
        raise MissingError("none of retain, real authors and world facts", reader.log.name)
    if missing:
        raise LogError(
            f"{reader.log.name}: model_utility is over nine metrics, and nothing gives {', '.join(missing)}; "
            "--metrics NAME,... scores what is there"
        )
    return float(definitions.UTILITIES["model_utility"](reader.samples))


def _official_forget_quality(reader: LogReader, retain: LogReader | None, allow_unequal: bool) -> float:
    """As `_forget_quality`; who gives a retained model's log asks for it, so that nothing may be missing."""
    try:
        return _forget_quality(reader, retain, "truth_ratio", allow_unequal)
    except MissingError as error:
        if retain is None:
            raise
        raise LogError(f"{error}, which forget_quality compares; --metrics NAME,... leaves it out") from error


def _forget_quality(reader: LogReader, retain: LogReader | None, quantity: str, allow_unequal: bool) -> float:
    if retain is None:
        raise MissingError("no retained model to compare with; give its log with --retain-log")
    index, ours = reader.ratios("forget", quantity)
    retain_index, theirs = retain.ratios("forget", quantity)
    # A question that is null in one log is no question of another split.
    null = (_null_to_forget(reader.log) | _null_to_forget(retain.log)) & (set(index) ^ set(retain_index))
    if null:
        reader.notes.append(
            f"forget_quality is over {len({*index, *retain_index} - null)} questions: {len(null)} more are "
            "null in one of the two logs and left out of both"
        )
        ours, theirs = ours[[i not in null for i in index]], theirs[[i not in null for i in retain_index]]
        index = tuple(i for i in index if i not in null)
        retain_index = tuple(i for i in retain_index if i not in null)
    unequal = _unequal(reader.log, index, retain.log, retain_index)
    if unequal and not allow_unequal:
        raise LogError(
            f"forget_quality needs the same questions in both logs: {unequal}; compare with the model "
            "retained for this forget split, or pass --allow-unequal"
        )
    if unequal:
        reader.notes.append(
            f"forget_quality compares {len(index)} questions with {len(retain_index)} others: its p-value "
            "shows the difference of the questions as well, and compares with no other one"
        )
    return definitions.forget_quality(ours, theirs)


def _null_to_forget(log: Log) -> set[str]:
    return {i for metric, null in log.null.items() if metric.startswith("forget_") for i in null}


def _unequal(log: Log, index: Sequence[str], retain: Log, retain_index: Sequence[str]) -> str | None:
    """How the questions to forget of two logs differ, in words; None where nothing shows that they do."""
    odd = set(index) ^ set(retain_index)
    if odd:
        return (
            f"{log.name} has {len(index)}, {retain.name} has {len(retain_index)}, and {len(odd)} are in one "
            "only"
        )
    metric = "forget_Q_A_ROUGE"
    return difference(metric, logged_golds(log, metric), logged_golds(retain, metric))


def retain_ratios(path: Path) -> Array:
    """Truth ratios on the forget set in a retained model's log, in the log's order. Raises LogError."""
    return LogReader(as_open_unlearning(read_log(path))).ratios("forget", "truth_ratio")[1]


def retained_metrics(path: Path) -> dict[str, float]:
    """The metrics that a retained model's log has the samples of, for its own row in a table.

    Raises LogError where the log is wrong.
    """
    reader = LogReader(as_open_unlearning(read_log(path)))
    found: dict[str, float] = {}
    for name, part in definitions.PARTS.items():
        with suppress(MissingError):
            found[name] = _part(reader, part)
    for name in MEANS_OF_SCORES:
        with suppress(MissingError):
            found[name] = mean_score(reader.log, name)
    if set(definitions.UTILITY_PARTS) <= set(found):
        found["model_utility"] = _model_utility(reader)
    # Against itself: no two truth ratios differ.
    return found | ({"forget_quality": 1.0} if "forget_truth_ratio" in found else {})
