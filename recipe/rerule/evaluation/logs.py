"""The evaluation logs of open-unlearning, NAME_EVAL.json: read, checked, scored and written.

    {metric: {"agg_value": number, "value_by_index": {index: {key: value}}}}

A value is a number, or a list where a question has several answers. Membership inference nests one level
deeper: {"mia_min_k": {"forget": {"value_by_index": ...}, "holdout": ...}}. An agg_value is never a result.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe.rerule.evaluation.metrics import UNTRAINED_AUC, Array, auc, privleak
from recipe.rerule.io import is_finite, read_json

if TYPE_CHECKING:  # `score` starts without pyarrow
    from recipe.rerule.evaluation.probes import Probe

MEANS_OF_SCORES = ("extraction_strength", "exact_memorization")
_SHOWN = 60


class MissingError(ValueError):
    """The log lacks what a metric is computed from; the message does not name the log."""


@dataclass(frozen=True)
class Log:
    """A log as it was read.

    Attributes:
        name: of the file, for messages.
        metrics: the JSON object.
        null: a note for each metric that has been read and of which samples were left out.
    """

    name: str
    metrics: Mapping[str, Any]
    null: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def entries(self, metric: str, *part: str) -> Mapping[str, Any]:
        """The samples of a metric, or of a part of it, by index. Raises MissingError and ValueError."""
        where = "/".join((metric, *part))
        value: Any = self.metrics
        for name in (metric, *part):
            if not isinstance(value, Mapping) or name not in value:
                raise MissingError(f"no {where}")
            value = value[name]
        entries = value.get("value_by_index") if isinstance(value, Mapping) else None
        if entries is None:
            raise MissingError(f"{where} has no value_by_index")
        if not isinstance(entries, Mapping) or not entries:
            raise ValueError(f"{self.name}: value_by_index of {where} is empty or no object")
        return entries

    def numbers(
        self, metric: str, key: str, *part: str, low: float = -math.inf, high: float = math.inf
    ) -> dict[str, list[float]]:
        """The values of `key`, checked: {sample: one or several}, as many of each sample.

        Samples for which the log has null are left out, as open-unlearning leaves them out.

        Args:
            metric: as "forget_Q_A_Prob".
            key: as "avg_loss".
            part: of a nested metric, as "holdout".
            low, high: bounds of a sensible value; a millionth beyond them is let pass, as rounding.

        Raises:
            MissingError: no such metric or part.
            ValueError: no samples, a value that is no finite number in bounds, or lists of unequal length.
        """
        name, rows = "/".join((metric, *part)), dict[str, list[float]]()
        entries = self.entries(metric, *part)
        for index, entry in entries.items():
            where = f"{self.name}: {name}, index {index}"
            if entry is None:
                continue
            if not isinstance(entry, Mapping) or key not in entry:
                raise ValueError(f"{where} has no {key}")
            row = entry[key] if isinstance(entry[key], list) else [entry[key]]
            if None in row:
                continue
            for value in row:
                if not is_finite(value):
                    raise ValueError(f"{where}: {key} is {json.dumps(value)[:40]}, not a finite number")
                if not low - 1e-6 <= value <= high + 1e-6:
                    raise ValueError(f"{where}: {key} is {value}, outside [{low:g}, {high:g}]")
            answers = len(next(iter(rows.values()), row))
            if not row or len(row) != answers:
                raise ValueError(f"{where}: {key} has {len(row)} values, where others have {answers}")
            rows[index] = row
        if not rows:
            raise ValueError(f"{self.name}: every {key} of {name} is null")
        if null := len(entries) - len(rows):
            self.null[name] = f"{name}: {null} of {len(entries)} samples are null and left out"
        return rows

    def pair(
        self, first: str, second: str, key: str, low: float, high: float
    ) -> tuple[list[str], Array, Array]:
        """The samples that have values of two metrics, and the values of each: shape (samples, answers).

        Raises as `numbers`, and ValueError where one metric lists a sample that the other does not.
        """
        values = [self.numbers(metric, key, low=low, high=high) for metric in (first, second)]
        if odd := sorted(set(self.entries(first)) ^ set(self.entries(second))):
            raise ValueError(
                f"{self.name}: {first} and {second} are over different samples: {len(odd)} are in one only, "
                f"as index {odd[0]}"
            )
        index = [sample for sample in values[0] if sample in values[1]]
        if not index:
            raise ValueError(f"{self.name}: no sample has values of both {first} and {second}")
        arrays = [np.array([of[sample] for sample in index], dtype=float) for of in values]
        return index, arrays[0], arrays[1]

    def texts(self, metric: str, key: str) -> dict[str, str]:
        """{index: text} of the samples that have one; {} where the metric is not there."""
        try:
            entries = self.entries(metric)
        except ValueError:
            return {}
        found = {i: entry.get(key) for i, entry in entries.items() if isinstance(entry, Mapping)}
        return {i: text for i, text in found.items() if isinstance(text, str)}


def means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The mean of each sample's values."""
    return {sample: float(np.mean(row)) for sample, row in values.items()}


def read_log(path: Path) -> Log:
    """Read a log. Raises ValueError where it is no JSON object, or where a key occurs twice in one object."""
    # A NaN is refused where it is used, by the metric and sample that it belongs to.
    content = read_json(path, nan=True)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not a JSON object of metrics")
    return Log(str(path), content)


# Metrics of a log, one by one: those it has the values for, and why the others are missing.

Computations = Mapping[str, Callable[[], Any]]
"""By metric; each raises MissingError where the log lacks what it is computed from."""


@dataclass
class Scored:
    """What came of a log or of a table.

    Attributes:
        metrics: by name; None where the log, or the command, lacks what is needed, and a note says so.
        notes: one line each, for the reader.
    """

    metrics: dict[str, float | None]
    notes: list[str] = field(default_factory=list)


def compute(own: Computations, log: Log, retain_log: Log | None) -> Scored:
    """A benchmark's `own` metrics of a log, and those that the logs of several benchmarks may hold.

    Raises ValueError: a bad value, or none of the benchmark's own.
    """
    computations = dict(own) | {
        name: partial(mean_score, log, name) for name in MEANS_OF_SCORES if name in log.metrics
    }
    notes = []
    if "mia_min_k" in log.metrics:
        reference = UNTRAINED_AUC
        if retain_log is not None and "mia_min_k" in retain_log.metrics:
            reference = min_k_auc(retain_log)
        else:
            notes.append(
                f"privleak is against an AUC of {UNTRAINED_AUC}: no retained model's mia_min_k is given"
            )
        computations["mia_min_k"] = partial(min_k_auc, log)
        computations["privleak"] = lambda: privleak(min_k_auc(log), reference)
    found: dict[str, float | None] = {}
    missing: list[str] = []
    for name, computation in computations.items():
        try:
            found[name] = float(computation())
        except MissingError as error:
            found[name] = None
            missing.append(f"{name} ({error})")
    if all(found[name] is None for name in own):
        raise ValueError(f"{log.name}: a log of another benchmark? Nothing can be computed: {missing[0]}")
    if odd := [name for name, value in found.items() if value is not None and not math.isfinite(value)]:
        raise ValueError(f"{odd[0]} comes out as {found[odd[0]]}; look at the log's values")
    return Scored(found, [*notes, *([f"null: {', '.join(missing)}"] if missing else [])])


def retained_metrics(own: Computations, log: Log) -> dict[str, float]:
    """The numbers of a retained model's log that are also computed from answers. Raises ValueError."""
    found = compute(own, log, None).metrics
    of_texts = ("mia_min_k", "privleak")
    return {name: value for name, value in found.items() if value is not None and name not in of_texts}


def mean_score(log: Log, metric: str, key: str = "score") -> float:
    """The mean over samples of a metric's `key`, which for ROUGE lies between 0 and 1. Raises ValueError."""
    low, high = (0, 1) if key.startswith("rouge") else (-math.inf, math.inf)
    return float(np.mean(list(means(log.numbers(metric, key, low=low, high=high)).values())))


def min_k_auc(log: Log) -> float:
    """AUC of Min-K% scores, open-unlearning's: how often a holdout text scores above a forget text."""
    forget, holdout = (means(log.numbers("mia_min_k", "score", part)) for part in ("forget", "holdout"))
    return auc(list(forget.values()), list(holdout.values()))


# Whether two logs, or a log and the probes, are of the same questions. The right answers are compared: a
# logged prompt has the chat template of its model, and so tells nothing.

Golds = Mapping[str, Mapping[str, str]]
"""{ROUGE metric: {index of a sample: right answer}}."""


def golds_of_log(log: Log, metrics: Iterable[str]) -> Golds:
    return {metric: log.texts(metric, "ground_truth") for metric in metrics}


def golds_of_probes(
    probes: Sequence[Probe], set_of: Callable[[Any], str], metrics: Mapping[str, str]
) -> Golds:
    """As logs of these probes would have them.

    Args:
        set_of: the question set of a probe's labels.
        metrics: the ROUGE metric of each question set that tells questions apart.
    """
    golds: dict[str, dict[str, str]] = {metric: {} for metric in metrics.values()}
    for probe in sorted(probes, key=lambda probe: probe.index):
        if metric := metrics.get(set_of(probe.labels)):
            golds[metric][str(len(golds[metric]))] = probe.golds[0]
    return golds


def check_retained(retained: Log, golds: Golds, where: str) -> None:
    """Refuse a retained model's log of other questions, as far as it carries right answers.

    `where`: what has the `golds`. Raises ValueError.
    """
    for metric, texts in golds.items():
        logged = retained.texts(metric, "ground_truth")
        for index, text in texts.items():
            other = logged.get(index, text)
            if _bare(text) != _bare(other):
                raise ValueError(
                    f"--retain-log is of other questions: at index {index} of {metric} the right answer is "
                    f"{text[:_SHOWN]!r} in {where} and {other[:_SHOWN]!r} in {retained.name}; evaluate both "
                    "models on one split"
                )


def _bare(text: str) -> str:
    """Without white space: open-unlearning logs answers as a model's tokenizer gives them back."""
    return "".join(unicodedata.normalize("NFKC", text).split())


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
