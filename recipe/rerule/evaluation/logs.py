"""The evaluation logs of open-unlearning, NAME_EVAL.json: read, checked, scored and written.

    {metric: {"agg_value": number, "value_by_index": {index: {key: value}}}}

A value is a number, or a list where a question has several answers. Membership inference nests one level
deeper: {"mia_min_k": {"forget": {"value_by_index": ...}, "holdout": ...}}. An agg_value is never a result.
"""

from __future__ import annotations

import json
import math
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe.rerule.evaluation.metrics import EPSILON, UNTRAINED_AUC, Array, auc, privleak
from recipe.rerule.io import parse_json

if TYPE_CHECKING:  # `score` starts without pyarrow
    from recipe.rerule.evaluation.probes import Probe

MEANS_OF_SCORES = ("extraction_strength", "exact_memorization")
MIN_K_PARTS = {"forget": "forget_minKpc_neg_logprob", "holdout": "holdout_minKpc_neg_logprob"}
"""Parts of mia_min_k, and the metrics that held them in open-unlearning's first version."""
_SHOWN, _LISTED = 60, 3


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
        return np.asarray(self.array.mean(axis=-1))

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

    def golds(self, metric: str) -> dict[str, str]:
        """{index: right answer} of the samples of a ROUGE metric that carry one; {} where it is not there."""
        try:
            entries = self._entries(metric)
        except LogError:
            return {}
        found = {i: entry.get("ground_truth") for i, entry in entries.items() if isinstance(entry, Mapping)}
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
            if entry is None:
                continue
            if not isinstance(entry, Mapping) or key not in entry:
                raise LogError(f"{where} has no {key}")
            row = entry[key] if isinstance(entry[key], list) else [entry[key]]
            if not row:
                raise LogError(f"{where}: {key} is an empty list")
            if None in row:
                continue
            _check_numbers(row, key, where, low, high)
            answers = len(next(iter(rows.values()), row))
            if len(row) != answers:
                raise LogError(f"{where}: {key} has {len(row)} values, where others have {answers}")
            rows[index] = row
        if not rows:
            raise LogError(f"{self.name}: every {key} of {metric} is null")
        null = tuple(index for index in entries if index not in rows)
        self._leave_out(metric, entries, null)
        return Values(tuple(rows), np.array(list(rows.values()), dtype=float), null)


def _check_numbers(row: list[Any], key: str, where: str, low: float, high: float) -> None:
    for value in row:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise LogError(f"{where}: {key} is {json.dumps(value)[:40]}, not a number")
        # Nor is a whole number that no float holds.
        if not abs(value) <= sys.float_info.max:
            raise LogError(f"{where}: {key} is {str(value)[:40]}; a metric over it would be meaningless")
        if not low - 1e-6 <= value <= high + 1e-6:
            raise LogError(f"{where}: {key} is {value}, outside [{low:g}, {high:g}]")


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


# Metrics of a log, one by one: those it has the values for, and why the others are missing.

Computations = Mapping[str, Callable[[], float]]
"""By metric; each raises MissingError where the log lacks what it is computed from."""


@dataclass
class Scored:
    """What came of a log.

    Attributes:
        metrics: by name; None where the log, or the command, lacks what is needed, and a note says so.
        notes: one line each, for the reader.
    """

    metrics: dict[str, float | None]
    notes: list[str] = field(default_factory=list)


def compute(own: Computations, extra: Computations, wanted: Sequence[str] | None) -> Scored:
    """The `wanted` metrics, which must all be there; without `wanted`, all that can be computed.

    Args:
        own: the benchmark's.
        extra: others that a log of it may hold, which do not make one of it.

    Raises:
        LogError: an unknown or missing wanted metric, a bad value, or none of the benchmark's own.
    """
    computations = {**own, **extra}
    for name in wanted or ():
        if name not in computations:
            raise LogError(f"unknown metric {name!r}; choose from {', '.join(computations)}")
    metrics: dict[str, float | None] = {}
    missing = {}
    for name in wanted or computations:
        try:
            value = float(computations[name]())
        except MissingError as error:
            if wanted:
                raise LogError(f"{name} cannot be computed: {error}") from error
            metrics[name] = None
            missing[name] = f"{name} ({error.what})"
            continue
        if not math.isfinite(value):
            raise LogError(f"{name} comes out as {value}; look at the log's values")
        metrics[name] = value
    if all(name in missing for name in own) and not wanted:
        first = list(missing.values())
        more = f" and {len(first) - _LISTED} more" if len(first) > _LISTED else ""
        told = ", ".join(first[:_LISTED]) + more
        raise LogError(f"a log of another benchmark? Nothing can be computed: {told}")
    return Scored(metrics, [f"null: {', '.join(missing.values())}"] if missing else [])


def own_aggregates(log: Log, metrics: Mapping[str, float | None]) -> Iterable[str]:
    """A note for each metric whose agg_value in the log is another number."""
    for name, value in metrics.items():
        entry = log.metrics.get(name)
        own = entry.get("agg_value") if isinstance(entry, Mapping) else None
        if value is None or isinstance(own, bool) or not isinstance(own, int | float):
            continue
        # A whole number may be larger than any float.
        if not -sys.float_info.max <= own <= sys.float_info.max:
            yield f"{name}: the log's own agg_value is {str(own)[:40]}; its samples give {value:.6g}"
        elif abs(value - own) > 1e-6 * max(1, abs(value)):
            yield f"{name}: the log's own agg_value is {own:.6g}; its samples give {value:.6g}"


def extra_computations(log: Log, retain_log: Log | None, notes: list[str]) -> dict[str, Callable[[], float]]:
    """Metrics that the logs of several benchmarks may hold; only those that are in the log."""
    found: dict[str, Callable[[], float]] = {
        name: partial(mean_score, log, name) for name in MEANS_OF_SCORES if name in log.metrics
    }
    if "mia_min_k" in log.metrics or MIN_K_PARTS["forget"] in log.metrics:
        found["mia_min_k"] = lambda: min_k_auc(log)
        found["privleak"] = lambda: _log_privleak(log, retain_log, notes)
    return found


def mean_score(log: Log, metric: str) -> float:
    """The mean over samples of a metric that has a `score` for each. Raises LogError, MissingError."""
    return float(log.numbers(metric, "score").mean().mean())


def min_k_auc(log: Log) -> float:
    """AUC of Min-K% scores, open-unlearning's: how often a holdout text scores above a forget text."""
    forget, holdout = (
        log.numbers("mia_min_k", "score", part) if "mia_min_k" in log.metrics else log.numbers(name, "score")
        for part, name in MIN_K_PARTS.items()
    )
    return auc(forget.mean(), holdout.mean())


def _log_privleak(log: Log, retain_log: Log | None, notes: list[str]) -> float:
    """PrivLeak against the retained model's AUC, or against chance where its log is not given."""
    model_auc = min_k_auc(log)
    try:
        reference = None if retain_log is None else min_k_auc(retain_log)
    except MissingError as error:
        notes.append(f"privleak: {error}")
        reference = None
    if reference is None:
        notes.append(f"privleak is against an AUC of {UNTRAINED_AUC}: no retained model's mia_min_k is given")
    return privleak(model_auc, UNTRAINED_AUC if reference is None else reference)


# Whether two logs, or a log and the probes, are of the same questions. The right answers are compared: a
# logged prompt has the chat template of its model, and so tells nothing.


def numbered_golds(probes: Sequence[Probe], set_of: Callable[[Any], str]) -> dict[str, dict[str, str]]:
    """By question set, the probes' right answers under the indices that our logs give them."""
    found: dict[str, dict[str, str]] = {}
    for probe in sorted(probes, key=lambda probe: probe.index):
        members = found.setdefault(set_of(probe.labels), {})
        members[str(len(members))] = probe.golds[0]
    return found


def check_retained(log: Log, golds: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse a retained model's log of other questions than the probes', as far as it carries right answers.

    `golds`: the probes', by ROUGE metric and index. Raises LogError.
    """
    for metric, texts in golds.items():
        found = difference(metric, "the probes", texts, log.name, log.golds(metric))
        if found:
            raise LogError(f"--retain-log is of other questions: {found}; evaluate both models on one split")


def difference(
    metric: str, ours: str, our_golds: Mapping[str, str], theirs: str, their_golds: Mapping[str, str]
) -> str | None:
    """The first index with another right answer, in words; None where no index of both has one.

    `ours` and `theirs`: what holds the golds, for messages.
    """
    for index, text in our_golds.items():
        other = their_golds.get(index, text)
        if _bare(text) != _bare(other):
            return (
                f"at index {index} of {metric} the right answer is {_short(text)} in {ours} and "
                f"{_short(other)} "
                f"in {theirs}"
            )
    return None


def _bare(text: str) -> str:
    """Without white space: open-unlearning logs answers as a model's tokenizer gives them back."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


# Writing.


def metric_entry(agg_value: float | None, value_by_index: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A metric as the log holds it."""
    return {"agg_value": agg_value, "value_by_index": dict(value_by_index)}


def score_entry(values: Iterable[float], key: str = "score") -> dict[str, Any]:
    """A metric of one number a sample, numbered from 0, and their mean."""
    numbers = [float(value) for value in values]
    return metric_entry(
        float(np.mean(numbers)), {str(place): {key: one} for place, one in enumerate(numbers)}
    )


def rouge_entry(rows: Sequence[Mapping[str, Any]], mean: str) -> dict[str, Any]:
    """A ROUGE metric of the rows, with the stemmer, as open-unlearning scores it.

    `mean`: the key whose mean is the metric, as "rougeL_recall".
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rougeL"], use_stemmer=True)
    entries = {}
    for place, row in enumerate(rows):
        reference, generation = row["golds"][0], row["response"].strip()
        scores = scorer.score(reference, generation)
        entries[str(place)] = {
            "rouge1_recall": float(scores["rouge1"].recall),
            "rougeL_f1": float(scores["rougeL"].fmeasure),
            "rougeL_recall": float(scores["rougeL"].recall),
            "input": row["prompt"],
            "ground_truth": reference,
            "generation": generation,
        }
    return metric_entry(float(np.mean([entry[mean] for entry in entries.values()])), entries)


def log_text(metrics: Mapping[str, Any]) -> str:
    """The file's text: metrics by name, indented by four as open-unlearning writes them. Refuses NaN."""
    return json.dumps(dict(sorted(metrics.items())), indent=4, allow_nan=False)
