"""TOFU logs as samples: open-unlearning's TOFU_EVAL.json, and locuslab/tofu's eval_log_aggregated.json.

Everything comes from the values of single samples. Which of a log's values count:
  loss         `avg_loss`; -log(prob) where there is none.
  probability  `prob`, which open-unlearning averages, where it is exp(-avg_loss) up to 16-bit rounding;
               exp(-avg_loss) elsewhere.
  truth ratio, normalised probability
               from those; the log's own `score` or `prob` of the derived metric only where they are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from recipe.rerule.evaluation.benchmarks.tofu import metrics as definitions
from recipe.rerule.evaluation.logs.open_unlearning import Log, LogError, MissingError, Values, common
from recipe.rerule.evaluation.statistics.samples import Array

LOCUSLAB_FILES = {
    "eval_log_forget.json": "forget",
    "eval_log.json": "retain",
    "eval_real_author_wo_options.json": "real_authors",
    "eval_real_world_wo_options.json": "world_facts",
}
"""Parts of locuslab/tofu's eval_log_aggregated.json, and TOFU's question set in each."""
# bfloat16 keeps 8 bits; float16 has steps of 6e-8 near 0.
_RELATIVE, _ABSOLUTE = 2.0**-8, 1e-7
_NOTABLE = 1e-3


class _Quantities(dict[str, Array]):
    """Quantities of one question set, read from the log when they are asked for."""

    def __init__(self, read: Callable[[str], Array]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, quantity: str) -> Array:
        self[quantity] = self._read(quantity)
        return self[quantity]


class LogReader:
    """A TOFU log as samples; `notes` gathers what a reader of the numbers should know.

    Quantities of one set may be over different samples, since null values are left out metric by metric.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.notes: list[str] = []
        self.samples = {name: _Quantities(partial(self._quantity, name)) for name in definitions.PREFIXES}

    def ratios(self, set_name: str, quantity: str) -> tuple[tuple[str, ...], Array]:
        """Truth ratios, or another quantity over the same answers, with the samples they are of."""
        prefix = definitions.PREFIXES[set_name]
        paraphrased = f"{prefix}_Q_A_PARA_Prob"
        # locuslab measures short answers a second time as their own paraphrase.
        unparaphrased = set_name in definitions.OPTIONS and paraphrased not in self.log.metrics
        right_metric = f"{prefix}_Q_A_Prob" if unparaphrased else paraphrased
        try:
            right, wrong = self._losses(right_metric), self._losses(f"{prefix}_Q_A_PERT_Prob")
        except MissingError:
            own = self._own_ratios(prefix)
            if own is None or quantity != "truth_ratio":
                raise
            self.notes.append(
                f"{prefix} truth ratios are the log's own: it has no losses to compute them from"
            )
            return own.index, own.mean()
        index = common(self.log, right, wrong, f"{right_metric} and {prefix}_Q_A_PERT_Prob")
        found = definitions.ratios(right.at(index).mean(axis=-1), wrong.at(index), self.log.epsilon)
        self._compare(prefix, index, found["truth_ratio"])
        return index, found[quantity]

    def _quantity(self, set_name: str, quantity: str) -> Array:
        prefix = definitions.PREFIXES[set_name]
        if quantity == "rouge_l":
            return self.log.numbers(f"{prefix}_Q_A_ROUGE", "rougeL_recall", low=0, high=1).mean()
        if quantity in ("prob", "eq25_prob"):
            return self._probability(set_name, quantity)
        return self.ratios(set_name, quantity)[1]

    def _probability(self, set_name: str, quantity: str) -> Array:
        prefix = definitions.PREFIXES[set_name]
        if set_name not in definitions.OPTIONS:
            return self._probs(f"{prefix}_Q_A_Prob").mean()
        names = f"{prefix}_Q_A_Prob", f"{prefix}_Q_A_PERT_Prob"
        own = f"{prefix}_Q_A_Prob_normalised"
        try:
            right, wrong = self._probs(names[0]), self._probs(names[1])
        except MissingError:
            if own not in self.log.metrics or quantity != "prob":
                raise
            self.notes.append(f"{own} is over the log's own values: it has no {names[0]} and {names[1]}")
            return self.log.numbers(own, "prob", low=0, high=1).mean()
        index = common(self.log, right, wrong, f"{names[0]} and {names[1]}")
        return definitions.probabilities(
            set_name, right.at(index).mean(axis=-1), wrong.at(index), self.log.epsilon
        )[quantity]

    def _losses(self, metric: str) -> Values:
        self._known(metric)
        if self.log.has(metric, "avg_loss"):
            return self.log.numbers(metric, "avg_loss", low=0)
        probs = self.log.numbers(metric, "prob", low=0, high=1)
        if not probs.array.all():
            raise LogError(
                f"{self.log.name}: {metric} has a prob of 0 and no avg_loss to say how unlikely it is"
            )
        return Values(probs.index, -np.log(probs.array), probs.null)

    def _probs(self, metric: str) -> Values:
        self._known(metric)
        if not self.log.has(metric, "avg_loss"):
            return self.log.numbers(metric, "prob", low=0, high=1)
        losses = self._losses(metric)
        from_loss = np.exp(-losses.array)
        if not self.log.has(metric, "prob"):
            return Values(losses.index, from_loss, losses.null)
        probs = self.log.numbers(metric, "prob", low=0, high=1)
        index = common(self.log, losses, probs, f"prob and avg_loss of {metric}")
        null = tuple({*losses.null, *probs.null})
        rows = Values(losses.index, from_loss).at(index)
        return Values(index, self._reconciled(metric, probs.at(index), rows), null)

    def _reconciled(self, metric: str, prob: Array, from_loss: Array) -> Array:
        """`prob` where it agrees with the loss up to 16-bit rounding, else what the loss gives."""
        if prob.shape != from_loss.shape:
            raise LogError(f"{self.log.name}: {metric} has not as many prob as avg_loss in each sample")
        difference = float(np.abs(prob - from_loss).max())
        if difference > _NOTABLE:
            self.notes.append(f"{metric}: prob and exp(-avg_loss) differ by up to {difference:.2g}")
        return np.where(np.isclose(prob, from_loss, rtol=_RELATIVE, atol=_ABSOLUTE), prob, from_loss)

    def _known(self, metric: str) -> None:
        if metric not in self.log.metrics:
            raise MissingError(f"no {metric}", self.log.name)
        if not self.log.has(metric, "avg_loss") and not self.log.has(metric, "prob"):
            raise MissingError(f"{metric} has neither avg_loss nor prob", self.log.name)

    def _own_ratios(self, prefix: str) -> Values | None:
        name = self.log.first(f"{prefix}_truth_ratio", f"{prefix}_Truth_Ratio")
        return None if name is None else self.log.numbers(name, "score", low=0)

    def _compare(self, prefix: str, index: tuple[str, ...], ratios: Array) -> None:
        """Notes where the log's own truth ratios are others: it may follow another definition."""
        try:
            own = self._own_ratios(prefix)
        except LogError:
            return
        if own is None or set(own.index) != set(index):
            return
        if not np.allclose(own.at(index).mean(axis=-1), ratios, rtol=_NOTABLE, atol=1e-6):
            self.notes.append(
                f"{prefix} truth ratios in the log are not those that its losses give; not used"
            )


def as_open_unlearning(log: Log) -> Log:
    """The log itself, or locuslab/tofu's aggregated one under open-unlearning's names.

    locuslab adds nothing to denominators, and has the first 300 questions of the larger sets.
    """
    found = {name: log.metrics[file] for file, name in LOCUSLAB_FILES.items() if file in log.metrics}
    if not found:
        return log
    metrics: dict[str, Any] = {}
    for set_name, content in found.items():
        metrics |= _from_locuslab(log, set_name, content)
    return replace(log, metrics=metrics, epsilon=0.0, _cache={})


def _from_locuslab(log: Log, set_name: str, content: Any) -> dict[str, Any]:
    prefix = definitions.PREFIXES[set_name]
    sources = {
        f"{prefix}_Q_A_Prob": ("avg_gt_loss", "avg_loss"),
        f"{prefix}_Q_A_PARA_Prob": ("avg_paraphrased_loss", "avg_loss"),
        f"{prefix}_Q_A_PERT_Prob": ("average_perturb_loss", "avg_loss"),
        f"{prefix}_Q_A_ROUGE": ("rougeL_recall", "rougeL_recall"),
    }
    metrics = {}
    for metric, (theirs, key) in sources.items():
        values = content.get(theirs) if isinstance(content, Mapping) else None
        if values is None:
            continue
        if not isinstance(values, Mapping):
            raise LogError(f"{log.name}: {theirs} of {prefix} is no object {{index: value}}")
        metrics[metric] = {"value_by_index": {index: {key: value} for index, value in values.items()}}
    return metrics
