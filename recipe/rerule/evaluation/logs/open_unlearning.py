"""The evaluation logs of open-unlearning, NAME_EVAL.json: read, checked, written.

    {metric: {"agg_value": number, "value_by_index": {index: {key: value}}}}

A value is a number, or a list where a question has several answers. Membership inference nests one level
deeper: {"mia_min_k": {"forget": {"value_by_index": ...}, "holdout": ...}}. An agg_value is never a result.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from recipe.rerule.evaluation.statistics.samples import Array
from recipe.rerule.io import parse_json

EPSILON = 1e-10
"""What open-unlearning adds to denominators."""


class LogError(ValueError):
    """A log that cannot be scored; the message is one line."""


class MissingError(LogError):
    """The log lacks what a metric is computed from; `what` is the message without the log's name."""

    def __init__(self, what: str, log: str = "") -> None:
        super().__init__(f"{log}: {what}" if log else what)
        self.what = what


@dataclass(frozen=True)
class Values:
    """One quantity of one metric, by sample.

    Attributes:
        index: the samples, in the log's order.
        array: shape (samples, answers); a single number has one answer.
        null: samples left out because the log has null for them, as open-unlearning leaves them out.
    """

    index: tuple[str, ...]
    array: Array
    null: tuple[str, ...] = ()

    def mean(self) -> Array:
        """Mean over a sample's answers, shape (samples,)."""
        return self.array.mean(axis=-1)

    def at(self, index: Sequence[str]) -> Array:
        """The rows of `index`, in its order. Raises KeyError where one is not there."""
        rows = {name: row for row, name in enumerate(self.index)}
        return self.array[[rows[name] for name in index]]


@dataclass(frozen=True)
class Log:
    """A log as it was read.

    Attributes:
        name: of the file, for messages.
        metrics: the JSON object.
        epsilon: what the definitions of the log's writer add to denominators.
        null: by metric, as far as the log has been read: the samples left out because they are null.
    """

    name: str
    metrics: Mapping[str, Any]
    epsilon: float = EPSILON
    null: dict[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)
    _sizes: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
    _cache: dict[tuple[str, ...], Values] = field(default_factory=dict, compare=False, repr=False)

    def first(self, *names: str) -> str | None:
        """The first of the spellings of a metric that the log has."""
        return next((name for name in names if name in self.metrics), None)

    def null_notes(self) -> list[str]:
        """A note for each metric of which samples were left out."""
        return [
            f"{metric}: {len(null)} of {self._sizes[metric]} samples are null and left out"
            for metric, null in self.null.items()
            if null
        ]

    def has(self, metric: str, key: str) -> bool:
        """Whether any sample of `metric` has `key`."""
        entries = self._entries(metric) if metric in self.metrics else {}
        return any(isinstance(entry, Mapping) and key in entry for entry in entries.values())

    def numbers(
        self, metric: str, key: str, *part: str, low: float = -math.inf, high: float = math.inf
    ) -> Values:
        """The values of `key`, checked.

        Args:
            metric: as "forget_Q_A_Prob".
            key: as "avg_loss".
            part: of a nested metric, as "holdout".
            low, high: bounds of a sensible value; a millionth beyond them is let pass, as rounding.

        Raises:
            MissingError: no such metric or part.
            LogError: no samples, or a value that is no finite number within bounds; lists of unequal length.
        """
        place = (metric, *part, key)
        if place not in self._cache:
            self._cache[place] = self._read(place, low, high)
        return self._cache[place]

    def texts(self, metric: str, key: str) -> dict[str, str] | None:
        """{index: text} of `key`, null samples left out; None where any other lacks it."""
        entries = self._entries(metric)
        self._leave_out(metric, entries, (i for i, entry in entries.items() if entry is None))
        found = {i: entry.get(key) for i, entry in entries.items() if isinstance(entry, Mapping)}
        return found if all(isinstance(text, str) for text in found.values()) else None  # type: ignore[return-value]

    def some_texts(self, metric: str, key: str) -> dict[str, str]:
        """{index: text} of the samples that have a text at `key`; {} where there is no such metric."""
        try:
            entries = self._entries(metric)
        except LogError:
            return {}
        found = {i: entry.get(key) for i, entry in entries.items() if isinstance(entry, Mapping)}
        return {i: text for i, text in found.items() if isinstance(text, str)}

    def _entries(self, metric: str, *part: str) -> Mapping[str, Any]:
        where = "/".join((metric, *part))
        value: Any = self.metrics
        for name in (metric, *part):
            if not isinstance(value, Mapping) or name not in value:
                raise MissingError(f"no {where}", self.name)
            value = value[name]
        entries = value.get("value_by_index") if isinstance(value, Mapping) else None
        if entries is None:
            raise MissingError(f"{where} has no value_by_index", self.name)
        if not isinstance(entries, Mapping) or not entries:
            raise LogError(f"{self.name}: value_by_index of {where} is empty or no object")
        return entries

    def _leave_out(self, metric: str, entries: Mapping[str, Any], null: Iterable[str]) -> None:
        self.null[metric] = tuple(dict.fromkeys([*self.null.get(metric, ()), *null]))
        self._sizes[metric] = len(entries)

    def _read(self, place: tuple[str, ...], low: float, high: float) -> Values:
        metric, key = "/".join(place[:-1]), place[-1]
        rows: dict[str, list[float]] = {}
        entries = self._entries(*place[:-1])
        for index, entry in entries.items():
            where = f"{self.name}: {metric}, index {index}"
            row = _row(entry, key, where)
            if row is not None:
                _check(row, key, where, low, high)
                rows[index] = row
        if not rows:
            raise LogError(f"{self.name}: every {key} of {metric} is null")
        _check_lengths(rows, key, f"{self.name}: {metric}")
        null = tuple(index for index in entries if index not in rows)
        self._leave_out(metric, entries, null)
        return Values(tuple(rows), np.array(list(rows.values()), dtype=float), null)


def common(log: Log, first: Values, second: Values, what: str) -> tuple[str, ...]:
    """Samples that both have values for, in the first's order; null in one of them leaves a sample out.

    Raises LogError where one lists a sample that the other does not.
    """
    listed = [{*values.index, *values.null} for values in (first, second)]
    odd = sorted(listed[0] ^ listed[1])
    if odd:
        raise LogError(
            f"{log.name}: {what} are over different samples: {len(odd)} are in one only, as index {odd[0]}"
        )
    there = set(second.index)
    return tuple(index for index in first.index if index in there)


def _row(entry: Any, key: str, where: str) -> list[float] | None:
    """The numbers of one sample; None where the sample or any of them is null."""
    if entry is None:
        return None
    if not isinstance(entry, Mapping) or key not in entry:
        raise LogError(f"{where} has no {key}")
    values = entry[key] if isinstance(entry[key], list) else [entry[key]]
    if not values:
        raise LogError(f"{where}: {key} is an empty list")
    return None if None in values else values


def _check(row: list[float], key: str, where: str, low: float, high: float) -> None:
    for value in row:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise LogError(f"{where}: {key} is {json.dumps(value)[:40]}, not a number")
        # Nor is a whole number that no float holds.
        if not abs(value) <= sys.float_info.max:
            raise LogError(f"{where}: {key} is {str(value)[:40]}; a metric over it would be meaningless")
        if not low - 1e-6 <= value <= high + 1e-6:
            raise LogError(f"{where}: {key} is {value}, outside [{low:g}, {high:g}]")


def _check_lengths(rows: Mapping[str, list[float]], key: str, where: str) -> None:
    first = len(next(iter(rows.values())))
    for index, row in rows.items():
        if len(row) != first:
            raise LogError(f"{where}, index {index}: {key} has {len(row)} values, where others have {first}")


def read_log(path: Path) -> Log:
    """Read a log. Raises LogError where it is no JSON object, or where a key occurs twice in one object."""
    repeated: list[_Repeated] = []

    def unique(pairs: list[tuple[str, Any]]) -> Any:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        names = [name for name, _ in pairs]
        repeated.append(_Repeated(next(name for name in names if names.count(name) > 1)))
        return repeated[-1]

    if not path.is_file():
        raise LogError(f"{path}: no such file")
    try:
        # A NaN is refused where it is used, by the metric and sample that it belongs to.
        content = parse_json(path.read_bytes(), nan=True, objects=unique)
    except ValueError as error:
        raise LogError(f"{path} {error}") from error
    if repeated:
        raise LogError(f"{path}: {_repetition(content)} occurs twice")
    if not isinstance(content, dict):
        raise LogError(f"{path}: not a JSON object of metrics")
    return Log(str(path), content)


@dataclass(frozen=True)
class _Repeated:
    """Stands where an object had one key twice."""

    key: str


def _repetition(content: Any, *path: str) -> str:
    """The first key that an object has twice, with its path, as "forget_Q_A_Prob/value_by_index/17"."""
    if isinstance(content, _Repeated):
        return "/".join((*path, content.key))
    if not isinstance(content, dict):
        return ""
    return next(filter(None, (_repetition(inner, *path, name) for name, inner in content.items())), "")


def metric_entry(agg_value: float | None, value_by_index: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A metric as the log holds it."""
    return {"agg_value": agg_value, "value_by_index": dict(value_by_index)}


def rouge_entry(prompt: str, reference: str, generation: str) -> dict[str, Any]:
    """One sample of a ROUGE metric, with the stemmer, as open-unlearning scores it."""
    from rouge_score.rouge_scorer import RougeScorer

    scores = RougeScorer(["rouge1", "rougeL"], use_stemmer=True).score(reference, generation)
    return {
        "rouge1_recall": float(scores["rouge1"].recall),
        "rougeL_f1": float(scores["rougeL"].fmeasure),
        "rougeL_recall": float(scores["rougeL"].recall),
        "input": prompt,
        "ground_truth": reference,
        "generation": generation,
    }


def log_text(metrics: Mapping[str, Any]) -> str:
    """The file's text: metrics by name, indented by four as open-unlearning writes them. Refuses NaN."""
    return json.dumps(dict(sorted(metrics.items())), indent=4, allow_nan=False)


def write_log(path: Path, metrics: Mapping[str, Any]) -> None:
    """Write NAME_EVAL.json; `metrics` from `metric_entry`. Raises ValueError on NaN."""
    path.write_text(log_text(metrics), encoding="utf-8")
