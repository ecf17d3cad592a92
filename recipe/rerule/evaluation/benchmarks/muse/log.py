"""MUSE logs: metrics from open-unlearning's MUSE_EVAL.json, and writing ours.

Two conventions of one ROUGE-L F1: with the stemmer, from the log's rougeL_f1, under open-unlearning's names;
without, computed again from its texts, under MUSE's. Those texts are stripped, which changes neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from recipe.rerule.evaluation.benchmarks.muse.benchmark import (
    COMPARED,
    LEGEND,
    OPEN_UNLEARNING_NAMES,
    SETS,
    Record,
    cut,
    probe_set,
)
from recipe.rerule.evaluation.benchmarks.muse.conventions import CONVENTIONS
from recipe.rerule.evaluation.logs.metrics import (
    MEANS_OF_SCORES,
    Scored,
    compute,
    extra_computations,
    own_aggregates,
)
from recipe.rerule.evaluation.logs.open_unlearning import (
    Log,
    LogError,
    MissingError,
    metric_entry,
    rouge_entry,
)
from recipe.rerule.evaluation.logs.questions import difference, logged_golds
from recipe.rerule.evaluation.memorised import of_all
from recipe.rerule.evaluation.statistics.roc import auc, privleak
from recipe.rerule.evaluation.statistics.samples import Array
from reward.rouge import rouge_l


def score(
    log: Log, retain_log: Log | None = None, *, wanted: Sequence[str] | None = None, variants: bool = False
) -> Scored:
    """Metrics of `log` under open-unlearning's and MUSE's names.

    Args:
        retain_log: of a model trained without the books; privleak compares with it.
        wanted: metrics that must come out; None for all that can be computed.
        variants: recall instead of F1 ("..._recall"), and answers cut at the first newline, which is RULE's
            stop string ("..._first_line"; the log's texts are stripped, so a newline at the start is gone).

    Raises:
        LogError: see `compute`; a retained model's log of other questions.
    """
    if retain_log is not None:
        _check_same_questions(log, retain_log)
    notes: list[str] = []
    computations: dict[str, Callable[[], float]] = {}
    computations |= {
        theirs: partial(_stemmed, log, theirs, "rougeL_f1") for theirs in OPEN_UNLEARNING_NAMES.values()
    }
    computations |= {name: partial(_official, log, name) for name in SETS}
    if variants:
        computations |= {
            f"{theirs}_recall": partial(_stemmed, log, theirs, "rougeL_recall")
            for theirs in OPEN_UNLEARNING_NAMES.values()
        }
        computations |= {f"{name}_first_line": partial(_official, log, name, ("\n",)) for name in SETS}
    scored = compute(computations, extra_computations(log, retain_log, notes), wanted)
    checked = {name: value for name, value in scored.metrics.items() if retain_log or name != "privleak"}
    unique = list(dict.fromkeys([*notes, *scored.notes, *own_aggregates(log, checked)]))
    return Scored(scored.metrics, unique, LEGEND)


def _check_same_questions(log: Log, retain_log: Log) -> None:
    for metric in COMPARED.values():
        found = difference(metric, logged_golds(log, metric), logged_golds(retain_log, metric))
        if found:
            raise LogError(f"the retained model's log is of other questions: {found}; leave --retain-log out")


def _stemmed(log: Log, metric: str, key: str) -> float:
    return float(log.numbers(metric, key, low=0, high=1).mean().mean())


def _official(log: Log, name: str, stop: Sequence[str] = ()) -> float:
    metric = OPEN_UNLEARNING_NAMES[name]
    generations, references = log.texts(metric, "generation"), log.texts(metric, "ground_truth")
    if not generations or not references:
        raise MissingError(f"{metric} keeps no texts to score again", log.name)
    stops = CONVENTIONS["muse"][SETS[name][1]].stop + tuple(stop)
    scores = [rouge_l(cut(generations[i], stops), references[i], "muse") for i in generations]
    return float(np.mean(scores))


def log_metrics(records: Sequence[Record], min_k: dict[str, Array] | None = None) -> dict[str, Any]:
    """Our records of one model as the metrics of MUSE_EVAL.json, for `write_log`.

    `min_k`: Min-40 % scores of "forget" and "holdout" texts. Its PrivLeak is against chance, as
    open-unlearning's is without a retained model's log.
    """
    metrics: dict[str, Any] = {}
    for name, theirs in OPEN_UNLEARNING_NAMES.items():
        members = sorted((r for r in records if probe_set(r) == name), key=lambda record: record["index"])
        entries = {
            str(number): rouge_entry(record["prompt"], record["golds"][0], record["response"].strip())
            for number, record in enumerate(members)
        }
        if entries:
            mean = float(np.mean([entry["rougeL_f1"] for entry in entries.values()]))
            metrics[theirs] = metric_entry(mean, entries)
        if name == "verbmem_f":
            metrics |= _memorised(members)
    return metrics if min_k is None else metrics | _privleak_metrics(min_k)


def _memorised(passages: Sequence[Record]) -> dict[str, Any]:
    """Extraction strength and exact memorisation of the passages, where the answers have ranks."""
    return {
        name: metric_entry(
            float(values.mean()), {str(number): {"score": float(one)} for number, one in enumerate(values)}
        )
        for name, values in of_all(passages, MEANS_OF_SCORES).items()
    }


def _privleak_metrics(min_k: dict[str, Array]) -> dict[str, Any]:
    value = auc(min_k["forget"], min_k["holdout"])
    parts = {
        part: metric_entry(
            float(scores.mean()), {str(number): {"score": float(s)} for number, s in enumerate(scores)}
        )
        for part, scores in min_k.items()
    }
    return {
        "mia_min_k": parts | {"auc": value, "agg_value": value},
        "privleak": {"agg_value": privleak(value, 0.5)},
    }
